/* The change feed: every committed change in commit order, and a named cursor. */

#include "../tests/c/check.h"

/* Returns the text of a position, and frees the value. */
static char *take_text(sheaf_value *value) {
  sheaf_bytes bytes = sheaf_value_bytes(value);
  char *text = calloc(bytes.size + 1, 1);
  CHECK(text != NULL);
  memcpy(text, bytes.data, bytes.size);
  sheaf_value_free(value);
  return text;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  sheaf_options *options;
  sheaf_db *db;
  sheaf_keyspace *users;
  sheaf_value *position;

  /* Without retention there is no feed. */
  OK(sheaf_open(sheaf_str(argv[1]), NULL, &db, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_oldest_change(db, &position, &error));
  CHECK(position == NULL);
  OK(sheaf_db_close(db, &error));
  sheaf_db_free(db);

  /* Retains at most 1 GiB of log files beyond those in use, until all cursors have passed them. */
  OK(sheaf_options_create(&options, &error));
  CHECK(sheaf_options_set_retain_changes(options, 1 << 30, 0, true) == SHEAF_OK);
  OK(sheaf_open(sheaf_str(argv[1]), options, &db, &error));
  sheaf_options_free(options);
  OK(sheaf_db_keyspace(db, sheaf_str("users"), NULL, &users, &error));
  OK(sheaf_insert(users, sheaf_str("alan"), sheaf_str("turing"), &error));
  OK(sheaf_db_newest_change(db, &position, &error));
  char *begin = take_text(position);

  /* All changes of a commit come together. */
  sheaf_batch *batch;
  sheaf_bytes start = sheaf_str("x"), end = sheaf_str("y");
  OK(sheaf_db_batch(db, &batch, &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("ada"), sheaf_str("lovelace"), &error));
  OK(sheaf_batch_remove(batch, users, sheaf_str("alan"), &error));
  OK(sheaf_batch_commit(batch, &error));
  OK(sheaf_remove_range(users, &start, &end, &error));
  sheaf_batch_free(batch);

  sheaf_changes *changes;
  size_t count;
  int32_t kind;
  sheaf_bytes keyspace, key;
  sheaf_value *value;
  OK(sheaf_db_changes(db, sheaf_str(begin), &changes, &error));
  OK(sheaf_changes_next_commit(changes, UINT64_MAX, &count, &error));
  CHECK(count == 2);
  OK(sheaf_changes_next_change(changes, &kind, &keyspace, &key, NULL, &error));
  CHECK(kind == SHEAF_CHANGE_KIND_PUT && equal(keyspace, "users") && equal(key, "ada"));
  OK(sheaf_changes_value(changes, &value, NULL, &error));
  CHECK(take_equal(value, "lovelace"));
  OK(sheaf_changes_next_change(changes, &kind, NULL, &key, NULL, &error));
  CHECK(kind == SHEAF_CHANGE_KIND_REMOVED && equal(key, "alan"));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_changes_value(changes, &value, NULL, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_changes_next_change(changes, &kind, NULL, NULL, NULL, &error));
  OK(sheaf_changes_next_commit(changes, UINT64_MAX, NULL, &error));
  OK(sheaf_changes_next_change(changes, &kind, NULL, &key, &end, &error));
  CHECK(kind == SHEAF_CHANGE_KIND_RANGE_REMOVED && equal(key, "x") && equal(end, "y"));

  /* There is no further commit yet. A later feed continues after the last one. */
  EXPECT(SHEAF_NOT_FOUND, sheaf_changes_next_commit(changes, 0, NULL, &error));
  OK(sheaf_changes_position(changes, &position, &error));
  char *after = take_text(position);
  sheaf_changes_free(changes);

  /* A cursor stores the position in the database. */
  sheaf_change_cursor *cursor;
  OK(sheaf_db_change_cursor(db, sheaf_str("index"), &cursor, &error));
  OK(sheaf_change_cursor_commit(cursor, sheaf_str(after), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_change_cursor_commit(cursor, sheaf_str(begin), &error));
  OK(sheaf_change_cursor_position(cursor, &position, &error));
  CHECK(take_equal(position, after));
  OK(sheaf_db_change_cursors(db, &value, &error));
  CHECK(take_contains(value, "\"name\":\"index\""));

  /* Filters select keyspaces and keys. */
  OK(sheaf_change_cursor_changes(cursor, &changes, &error));
  OK(sheaf_changes_add_keyspace(changes, sheaf_str("users"), &error));
  OK(sheaf_changes_add_prefix(changes, sheaf_str("g"), &error));
  OK(sheaf_changes_include_unsynced(changes, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_changes_value(changes, &value, NULL, &error));
  OK(sheaf_insert(users, sheaf_str("ada"), sheaf_str("king"), &error));
  OK(sheaf_insert(users, sheaf_str("grace"), sheaf_str("hopper"), &error));
  OK(sheaf_changes_next_commit(changes, 0, NULL, &error));
  OK(sheaf_changes_next_change(changes, NULL, NULL, &key, NULL, &error));
  CHECK(equal(key, "grace"));
  uint64_t expires_at_ms = 1;
  OK(sheaf_changes_value(changes, &value, &expires_at_ms, &error));
  CHECK(take_equal(value, "hopper") && expires_at_ms == 0);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_changes_engine(changes, &value, &error));
  sheaf_keyspace *logs;
  OK(sheaf_changes_add_keyspace(changes, sheaf_str("logs"), &error));
  OK(sheaf_db_keyspace(db, sheaf_str("logs"), NULL, &logs, &error));
  OK(sheaf_changes_next_commit(changes, 0, NULL, &error));
  OK(sheaf_changes_next_change(changes, &kind, NULL, NULL, NULL, &error));
  CHECK(kind == SHEAF_CHANGE_KIND_CREATED);
  OK(sheaf_changes_engine(changes, &value, &error));
  CHECK(take_contains(value, "\"engine\":\"flex\""));
  sheaf_keyspace_free(logs);

  /* The closing of the database ends the feed. */
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_changes(db, sheaf_str("no position"), NULL, &error));
  OK(sheaf_db_remove_change_cursor(db, sheaf_str("index"), &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_db_remove_change_cursor(db, sheaf_str("index"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_change_cursor_position(cursor, &position, &error));
  sheaf_change_cursor_free(cursor);
  sheaf_snapshot *snapshot;
  OK(sheaf_db_snapshot(db, &snapshot, &error));
  OK(sheaf_snapshot_change_position(snapshot, &position, &error));
  sheaf_value_free(position);
  sheaf_snapshot_free(snapshot);
  sheaf_keyspace_free(users);
  OK(sheaf_db_close(db, &error));
  EXPECT(SHEAF_CLOSED, sheaf_changes_next_commit(changes, UINT64_MAX, NULL, &error));
  sheaf_changes_free(changes);
  sheaf_db_free(db);
  free(begin);
  free(after);
  return 0;
}
