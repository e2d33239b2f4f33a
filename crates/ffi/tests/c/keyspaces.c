/* Calls the functions of databases, options and keyspaces that the examples do not use. */

#include "check.h"

static int32_t add_one(void *context, const sheaf_bytes *old, sheaf_new_value *new_value) {
  int number = old == NULL ? 0 : atoi((const char *)old->data);
  char text[16];
  int size = snprintf(text, sizeof text, "%d", number + 1);
  ++*(int *)context;
  CHECK(sheaf_new_value_append(new_value, sheaf_bytes_of(text, (size_t)size + 1)) == SHEAF_OK);
  return SHEAF_CHANGE_SET;
}

static void keep_size(void *context, sheaf_bytes value) { *(size_t *)context = value.size; }

static void on_stall(void *context, sheaf_bytes kind, sheaf_bytes keyspace, uint64_t nanoseconds) {
  (void)context, (void)kind, (void)keyspace, (void)nanoseconds;
}

static void on_release(void *context) { ++*(int *)context; }

static void test_single_keys(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_value *value, *values[2];
  uint64_t count, size;
  size_t needed;
  bool is_empty;
  sheaf_bytes old = sheaf_str("byron"), new_value = sheaf_str("lovelace");
  OK(sheaf_is_empty(users, &is_empty, &error));
  CHECK(is_empty);
  OK(sheaf_compare_and_swap(users, sheaf_str("ada"), NULL, &old, &error));
  EXPECT(SHEAF_CONFLICT, sheaf_compare_and_swap(users, sheaf_str("ada"), NULL, &old, &error));
  OK(sheaf_compare_and_swap(users, sheaf_str("ada"), &old, &new_value, &error));
  EXPECT(SHEAF_CONFLICT, sheaf_insert_if_absent(users, sheaf_str("ada"), sheaf_str("x"), &value, &error));
  CHECK(take_equal(value, "lovelace"));
  OK(sheaf_insert_if_absent(users, sheaf_str("empty"), sheaf_bytes_of(NULL, 0), &value, &error));
  CHECK(value == NULL);
  EXPECT(SHEAF_BUFFER_TOO_SMALL,
         sheaf_get_into(users, sheaf_str("ada"), sheaf_buffer_of(NULL, 0), &needed, &error));
  CHECK(needed == 8);
  OK(sheaf_get_into(users, sheaf_str("empty"), sheaf_buffer_of(NULL, 0), &needed, &error));
  CHECK(needed == 0);
  OK(sheaf_get(users, sheaf_str("empty"), &value, &error));
  CHECK(take_equal(value, ""));
  OK(sheaf_get_range(users, sheaf_str("ada"), 4, 100, &value, &error));
  CHECK(take_equal(value, "lace"));
  OK(sheaf_get_range(users, sheaf_str("ada"), UINT64_MAX, UINT64_MAX, &value, &error));
  CHECK(take_equal(value, ""));
  OK(sheaf_size_of(users, sheaf_str("ada"), &size, &error));
  CHECK(size == 8);
  OK(sheaf_contains_key(users, sheaf_str("ada"), &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("alan"), &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_blob_path(users, sheaf_str("ada"), &value, &error));
  OK(sheaf_read_with(users, sheaf_str("ada"), keep_size, &needed, &error));
  CHECK(needed == 8);
  sheaf_bytes keys[2] = {sheaf_str("alan"), sheaf_str("ada")};
  OK(sheaf_multi_get(users, keys, 2, values, &error));
  CHECK(values[0] == NULL && take_equal(values[1], "lovelace"));
  OK(sheaf_multi_get(users, NULL, 0, NULL, &error));
  OK(sheaf_len(users, &count, &error));
  CHECK(count == 2);

  int calls = 0;
  OK(sheaf_update(users, sheaf_str("logins"), add_one, &calls, NULL, &error));
  OK(sheaf_update(users, sheaf_str("logins"), add_one, &calls, &value, &error));
  CHECK(sheaf_value_bytes(value).size == 2 && calls == 2);
  sheaf_value_free(value);

  sheaf_value *key;
  OK(sheaf_first(users, &key, NULL, &error));
  CHECK(take_equal(key, "ada"));
  OK(sheaf_last(users, &key, &value, &error));
  CHECK(take_equal(key, "logins"));
  sheaf_value_free(value);
  OK(sheaf_pop_last(users, &key, NULL, &error));
  CHECK(take_equal(key, "logins"));
  OK(sheaf_pop_first(users, NULL, &value, &error));
  CHECK(take_equal(value, "lovelace"));
  OK(sheaf_try_insert(users, sheaf_str("b"), sheaf_str("1"), &error));
  OK(sheaf_try_remove(users, sheaf_str("b"), &error));

  sheaf_ticket *ticket;
  OK(sheaf_submit_insert(users, sheaf_str("c"), sheaf_str("1"), SHEAF_DURABILITY_SYNC, &ticket, &error));
  OK(sheaf_ticket_wait(ticket, &error));
  CHECK(sheaf_ticket_is_durable(ticket) && sheaf_ticket_seq(ticket) == sheaf_db_seq(db));
  sheaf_ticket_free(ticket);
  OK(sheaf_submit_remove(users, sheaf_str("c"), SHEAF_DURABILITY_BUFFER, &ticket, &error));
  OK(sheaf_ticket_wait_durable(ticket, &error));
  sheaf_ticket_free(ticket);

  for (char letter = 'a'; letter <= 'z'; letter++) {
    OK(sheaf_insert(users, sheaf_bytes_of(&letter, 1), sheaf_str("v"), &error));
  }
  sheaf_bytes start = sheaf_str("b"), end = sheaf_str("d");
  OK(sheaf_remove_range(users, &start, &end, &error));
  OK(sheaf_len(users, &count, &error));
  CHECK(count == 25);
  sheaf_iter *iter;
  OK(sheaf_keys(users, &iter, &error));
  OK(sheaf_iter_next(iter, &start, &end, &error));
  CHECK(equal(start, "a") && end.size == 0);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_iter_seek(iter, sheaf_str("x"), &error));
  sheaf_iter_free(iter);
  OK(sheaf_clear(users, &error));
  OK(sheaf_is_empty(users, &is_empty, &error));
  CHECK(is_empty);
}

static void test_estimates(sheaf_db *db) {
  sheaf_keyspace *numbers, *unordered, *shown;
  sheaf_snapshot *snapshot;
  sheaf_keyspace_options *hashed;
  sheaf_bytes start = sheaf_str("17"), end = sheaf_str("40");
  uint64_t pairs, bytes;
  char text[12];
  OK(sheaf_db_keyspace(db, sheaf_str("numbers"), NULL, &numbers, &error));
  for (int number = 0; number < 100; number++) {
    snprintf(text, sizeof text, "%02d", number);
    OK(sheaf_insert(numbers, sheaf_bytes_of(text, 2), sheaf_str("number"), &error));
  }
  OK(sheaf_estimate_range(numbers, &start, &end, &pairs, &bytes, &error));
  CHECK(pairs == 23 && bytes >= 23 * 8);
  OK(sheaf_estimate_range(numbers, NULL, &start, &pairs, NULL, &error));
  CHECK(pairs == 17);
  OK(sheaf_estimate_prefix(numbers, sheaf_str("4"), &pairs, &bytes, &error));
  CHECK(pairs == 10 && bytes >= 10 * 8 && bytes < 10 * 100);
  OK(sheaf_estimate_prefix(numbers, sheaf_str("x"), NULL, &bytes, &error));
  CHECK(bytes == 0);
  OK(sheaf_db_snapshot(db, &snapshot, &error));
  OK(sheaf_snapshot_keyspace(snapshot, sheaf_str("numbers"), &shown, &error));
  EXPECT(SHEAF_READ_ONLY, sheaf_estimate_range(shown, NULL, NULL, &pairs, &bytes, &error));
  sheaf_keyspace_free(shown);
  sheaf_snapshot_free(snapshot);
  sheaf_keyspace_free(numbers);
  OK(sheaf_db_drop_keyspace(db, sheaf_str("numbers"), &error));

  OK(sheaf_keyspace_options_create(sheaf_str("flat"), &hashed, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("unordered"), hashed, &unordered, &error));
  OK(sheaf_insert(unordered, sheaf_str("a"), sheaf_str("1"), &error));
  OK(sheaf_estimate_range(unordered, NULL, NULL, &pairs, NULL, &error));
  CHECK(pairs == 1);
  EXPECT(SHEAF_UNSUPPORTED, sheaf_estimate_range(unordered, &start, NULL, &pairs, NULL, &error));
  EXPECT(SHEAF_UNSUPPORTED, sheaf_estimate_prefix(unordered, sheaf_str("a"), &pairs, NULL, &error));
  sheaf_keyspace_options_free(hashed);
  sheaf_keyspace_free(unordered);
  OK(sheaf_db_drop_keyspace(db, sheaf_str("unordered"), &error));
}

static void test_batches(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_batch *batch, *other;
  sheaf_ticket *ticket;
  size_t count;
  OK(sheaf_db_batch(db, &batch, &error));
  OK(sheaf_db_batch(db, &other, &error));
  OK(sheaf_batch_insert(other, users, sheaf_str("x"), sheaf_str("1"), &error));
  OK(sheaf_batch_append(batch, other, &error));
  EXPECT(SHEAF_HANDLE_IN_USE, sheaf_batch_append(batch, batch, &error));
  OK(sheaf_batch_len(batch, &count, &error));
  CHECK(count == 1);
  OK(sheaf_batch_try_commit(batch, &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("y"), sheaf_str("1"), &error));
  OK(sheaf_batch_clear(batch, &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("z"), sheaf_str("1"), &error));
  OK(sheaf_batch_try_submit(batch, &ticket, &error));
  sheaf_ticket_free(ticket);
  OK(sheaf_batch_remove(batch, users, sheaf_str("z"), &error));
  OK(sheaf_batch_submit(batch, &ticket, &error));
  OK(sheaf_ticket_wait(ticket, &error));
  sheaf_ticket_free(ticket);
  sheaf_bytes start = sheaf_str("r"), end = sheaf_str("s");
  OK(sheaf_batch_insert(batch, users, sheaf_str("r1"), sheaf_str("1"), &error));
  OK(sheaf_batch_remove_range(batch, users, &start, &end, &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("r2"), sheaf_str("1"), &error));
  OK(sheaf_batch_commit(batch, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("r1"), &error));
  OK(sheaf_contains_key(users, sheaf_str("r2"), &error));
  OK(sheaf_batch_insert(other, users, sheaf_str("x"), sheaf_str("1"), &error));
  OK(sheaf_batch_remove_range(batch, users, NULL, NULL, &error));
  OK(sheaf_batch_append(batch, other, &error));
  OK(sheaf_batch_commit(batch, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("r2"), &error));
  sheaf_batch_free(batch);
  sheaf_batch_free(other);
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("y"), &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("z"), &error));
  OK(sheaf_contains_key(users, sheaf_str("x"), &error));
}

static void test_transactions(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_transaction *transaction, *other;
  sheaf_value *value;
  sheaf_iter *iter;
  sheaf_bytes key, content, start = sheaf_str("t");
  sheaf_ticket *ticket;
  size_t savepoint, later;
  OK(sheaf_insert(users, sheaf_str("t1"), sheaf_str("1"), &error));

  /* Reads show the snapshot and the changes of the transaction. */
  OK(sheaf_db_transaction(db, &transaction, &error));
  CHECK(sheaf_transaction_seq(transaction) == sheaf_db_seq(db));
  OK(sheaf_insert(users, sheaf_str("t9"), sheaf_str("9"), &error));
  OK(sheaf_transaction_get(transaction, users, sheaf_str("t1"), &value, &error));
  CHECK(take_equal(value, "1"));
  EXPECT(SHEAF_NOT_FOUND, sheaf_transaction_untracked_get(transaction, users, sheaf_str("t9"), &value, &error));
  CHECK(value == NULL);
  OK(sheaf_transaction_savepoint(transaction, &savepoint, &error));
  OK(sheaf_transaction_insert(transaction, users, sheaf_str("t2"), sheaf_str("2"), &error));
  OK(sheaf_transaction_savepoint(transaction, &later, &error));
  OK(sheaf_transaction_remove(transaction, users, sheaf_str("t1"), &error));
  OK(sheaf_transaction_roll_back_to(transaction, savepoint, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_transaction_roll_back_to(transaction, later, &error));
  OK(sheaf_transaction_insert(transaction, users, sheaf_str("t3"), sheaf_str("3"), &error));
  OK(sheaf_transaction_set_durability(transaction, SHEAF_DURABILITY_SYNC, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_transaction_set_durability(transaction, 7, &error));
  OK(sheaf_transaction_submit(transaction, &ticket, &error));
  CHECK(sheaf_ticket_seq(ticket) == sheaf_db_seq(db));
  OK(sheaf_ticket_wait(ticket, &error));
  sheaf_ticket_free(ticket);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_transaction_commit(transaction, &error));
  CHECK(sheaf_transaction_seq(transaction) == 0);
  sheaf_transaction_free(transaction);
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("t2"), &error));
  OK(sheaf_contains_key(users, sheaf_str("t3"), &error));

  /* Another commit to a key that was read is a conflict; one to another key is not. */
  OK(sheaf_db_transaction(db, &transaction, &error));
  OK(sheaf_db_transaction(db, &other, &error));
  OK(sheaf_transaction_get_for_update(transaction, users, sheaf_str("t1"), &value, &error));
  sheaf_value_free(value);
  OK(sheaf_transaction_get(other, users, sheaf_str("t3"), &value, &error));
  sheaf_value_free(value);
  OK(sheaf_transaction_insert(other, users, sheaf_str("t4"), sheaf_str("4"), &error));
  OK(sheaf_insert(users, sheaf_str("t1"), sheaf_str("2"), &error));
  EXPECT(SHEAF_CONFLICT, sheaf_transaction_commit(transaction, &error));
  OK(sheaf_transaction_commit(other, &error));
  sheaf_transaction_free(transaction);
  sheaf_transaction_free(other);

  /* A key in a range that was read is a conflict, too. */
  OK(sheaf_db_transaction(db, &transaction, &error));
  OK(sheaf_transaction_prefix(transaction, users, sheaf_str("t"), &iter, &error));
  OK(sheaf_iter_next_back(iter, &key, &content, &error));
  CHECK(equal(key, "t9") && equal(content, "9"));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_iter_seek(iter, sheaf_str("t"), &error));
  sheaf_iter_free(iter);
  OK(sheaf_transaction_range(transaction, users, &start, NULL, &iter, &error));
  OK(sheaf_iter_next(iter, &key, &content, &error));
  CHECK(equal(key, "t1") && equal(content, "2"));
  OK(sheaf_insert(users, sheaf_str("t0"), sheaf_str("0"), &error));
  OK(sheaf_transaction_insert(transaction, users, sheaf_str("t5"), sheaf_str("5"), &error));
  EXPECT(SHEAF_CONFLICT, sheaf_transaction_commit(transaction, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_iter_next(iter, &key, &content, &error));
  sheaf_iter_free(iter);
  sheaf_transaction_free(transaction);

  /* A transaction that is freed changes nothing. */
  OK(sheaf_db_transaction(db, &transaction, &error));
  OK(sheaf_transaction_insert(transaction, users, sheaf_str("t6"), sheaf_str("6"), &error));
  OK(sheaf_transaction_remove_range(transaction, users, &start, NULL, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_transaction_get(transaction, users, sheaf_str("t6"), &value, &error));
  sheaf_transaction_free(transaction);
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("t6"), &error));
  const char *left[] = {"t0", "t1", "t3", "t4", "t9"};
  for (size_t at = 0; at < sizeof left / sizeof *left; at++) {
    OK(sheaf_contains_key(users, sheaf_str(left[at]), &error));
    OK(sheaf_remove(users, sheaf_str(left[at]), &error));
  }
}

static void test_merges(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_keyspace_options *options;
  sheaf_keyspace *log;
  sheaf_batch *batch;
  sheaf_transaction *transaction;
  sheaf_ticket *ticket;
  sheaf_value *value;
  sheaf_bytes key = sheaf_str("k");
  OK(sheaf_keyspace_options_create(sheaf_str("flat"), &options, &error));
  OK(sheaf_keyspace_options_set_merge_operator(options, sheaf_str("none"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_keyspace(db, sheaf_str("log"), options, &log, &error));
  OK(sheaf_keyspace_options_set_merge_operator(options, sheaf_str("append"), &error));
  OK(sheaf_db_keyspace(db, sheaf_str("log"), options, &log, &error));
  sheaf_keyspace_options_free(options);

  OK(sheaf_merge(log, key, sheaf_str("a"), &error));
  OK(sheaf_submit_merge(log, key, sheaf_str("b"), SHEAF_DURABILITY_SYNC, &ticket, &error));
  OK(sheaf_ticket_wait(ticket, &error));
  sheaf_ticket_free(ticket);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_submit_merge(log, key, sheaf_str("x"), 7, &ticket, &error));
  OK(sheaf_db_batch(db, &batch, &error));
  OK(sheaf_batch_merge(batch, log, key, sheaf_str("c"), &error));
  OK(sheaf_batch_insert(batch, log, sheaf_str("l"), sheaf_str("1"), &error));
  OK(sheaf_batch_merge(batch, log, sheaf_str("l"), sheaf_str("2"), &error));
  OK(sheaf_batch_commit(batch, &error));
  OK(sheaf_batch_merge(batch, users, key, sheaf_str("x"), &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("beside"), sheaf_str("x"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_batch_commit(batch, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("beside"), &error));
  sheaf_batch_free(batch);
  OK(sheaf_get(log, sheaf_str("l"), &value, &error));
  CHECK(take_equal(value, "12"));

  OK(sheaf_db_transaction(db, &transaction, &error));
  OK(sheaf_transaction_merge(transaction, log, key, sheaf_str("d"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_transaction_merge(transaction, users, key, sheaf_str("x"), &error));
  OK(sheaf_transaction_get(transaction, log, key, &value, &error));
  CHECK(take_equal(value, "abcd"));
  OK(sheaf_transaction_commit(transaction, &error));
  sheaf_transaction_free(transaction);
  OK(sheaf_get(log, key, &value, &error));
  CHECK(take_equal(value, "abcd"));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_merge(users, key, sheaf_str("x"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_merge(NULL, key, sheaf_str("x"), &error));
  sheaf_keyspace_free(log);
  OK(sheaf_db_drop_keyspace(db, sheaf_str("log"), &error));
}

static void test_snapshots(sheaf_db *db) {
  sheaf_snapshot *snapshot;
  sheaf_keyspace *shown;
  sheaf_value *value, *key;
  sheaf_iter *iter;
  sheaf_bytes start = sheaf_str("w");
  uint64_t size;
  bool is_empty;
  OK(sheaf_db_snapshot(db, &snapshot, &error));
  CHECK(sheaf_snapshot_seq(snapshot) == sheaf_db_seq(db));
  OK(sheaf_snapshot_keyspaces(snapshot, &value, &error));
  CHECK(take_equal(value, "[\"users\"]"));
  EXPECT(SHEAF_KEYSPACE_NOT_FOUND, sheaf_snapshot_keyspace(snapshot, sheaf_str("no"), &shown, &error));
  CHECK(shown == NULL);
  OK(sheaf_snapshot_keyspace(snapshot, sheaf_str("users"), &shown, &error));
  OK(sheaf_size_of(shown, sheaf_str("x"), &size, &error));
  CHECK(size == 1);
  OK(sheaf_len(shown, &size, &error));
  CHECK(size == 1);
  OK(sheaf_is_empty(shown, &is_empty, &error));
  CHECK(!is_empty);
  OK(sheaf_contains_key(shown, sheaf_str("x"), &error));
  OK(sheaf_first(shown, &key, &value, &error));
  CHECK(take_equal(key, "x") && take_equal(value, "1"));
  OK(sheaf_last(shown, &key, NULL, &error));
  CHECK(take_equal(key, "x"));
  OK(sheaf_range(shown, &start, NULL, &iter, &error));
  OK(sheaf_iter_next_back(iter, &start, NULL, &error));
  CHECK(equal(start, "x"));
  sheaf_iter_free(iter);
  sheaf_keyspace_free(shown);
  sheaf_snapshot_free(snapshot);
}

static void test_owner(const char *path) {
  sheaf_owner *owner;
  sheaf_db *db;
  sheaf_value *value;
  OK(sheaf_owner_connect(sheaf_str(path), &owner, &error));
  OK(sheaf_owner_overview(owner, &value, &error));
  CHECK(take_contains(value, "\"keyspaces\":["));
  OK(sheaf_owner_persist(owner, &error));
  OK(sheaf_owner_verify(owner, NULL, NULL, &value, &error));
  CHECK(take_contains(value, "\"findings\":0"));
  OK(sheaf_owner_compact(owner, NULL, NULL, NULL, NULL, &error));
  OK(sheaf_owner_estimate_conversion(owner, sheaf_str("users"), &value, &error));
  CHECK(take_contains(value, "\"pairs\":"));
  sheaf_owner_free(owner);
  OK(sheaf_open_or_connect(sheaf_str(path), NULL, &db, &owner, &error));
  CHECK(db == NULL && owner != NULL);
  sheaf_owner_free(owner);
}

static void test_expiry(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_keyspace_options *options;
  sheaf_keyspace *sessions;
  uint64_t time;
  OK(sheaf_keyspace_options_create(sheaf_str("flex"), &options, &error));
  OK(sheaf_keyspace_options_set(options, sheaf_str("expiry"), 1, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("sessions"), options, &sessions, &error));
  sheaf_keyspace_options_free(options);
  OK(sheaf_insert_with_ttl(sessions, sheaf_str("ada"), sheaf_str("token"), 600000, &error));
  OK(sheaf_expires_at(sessions, sheaf_str("ada"), &time, &error));
  CHECK(time > 1500000000000);
  OK(sheaf_insert(sessions, sheaf_str("ada"), sheaf_str("token"), &error));
  OK(sheaf_expires_at(sessions, sheaf_str("ada"), &time, &error));
  CHECK(time == 0);
  EXPECT(SHEAF_NOT_FOUND, sheaf_expires_at(sessions, sheaf_str("alan"), &time, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT,
         sheaf_insert_with_ttl(sessions, sheaf_str("ada"), sheaf_str("token"), 0, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT,
         sheaf_insert_with_ttl(users, sheaf_str("ada"), sheaf_str("token"), 1, &error));
  sheaf_keyspace_free(sessions);
  OK(sheaf_db_drop_keyspace(db, sheaf_str("sessions"), &error));
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  sheaf_options *options;
  sheaf_db *db;
  sheaf_keyspace *users;
  sheaf_keyspace_options *wide;
  sheaf_value *value;
  int releases = 0;
  OK(sheaf_options_create(&options, &error));
  CHECK(sheaf_options_set_create(options, false) == SHEAF_OK);
  EXPECT(SHEAF_DATABASE_NOT_FOUND, sheaf_open(sheaf_str(argv[1]), options, &db, &error));
  CHECK(sheaf_options_set_create(options, true) == SHEAF_OK);
  CHECK(sheaf_options_set_read_only(options, false) == SHEAF_OK);
  CHECK(sheaf_options_set_ipc(options, true) == SHEAF_OK);
  CHECK(sheaf_options_set_wait(options, 10) == SHEAF_OK);
  CHECK(sheaf_options_set_memory(options, 64 << 20) == SHEAF_OK);
  CHECK(sheaf_options_set_permissions(options, 0640, 0750) == SHEAF_OK);
  CHECK(sheaf_options_set_open_files(options, 64) == SHEAF_OK);
  CHECK(sheaf_options_set_persistent_memory(options, SHEAF_PERSISTENT_MEMORY_OFF) == SHEAF_OK);
  CHECK(sheaf_options_set_durability(options, SHEAF_DURABILITY_BUFFER) == SHEAF_OK);
  CHECK(sheaf_options_set_sync_interval(options, 50) == SHEAF_OK);
  CHECK(sheaf_options_set_background_threads(options, 2) == SHEAF_OK);
  CHECK(sheaf_options_set_space_limit(options, 2.0) == SHEAF_OK);
  CHECK(sheaf_options_set_stall_callback(options, on_stall, &releases, on_release, 1) == SHEAF_OK);
  OK(sheaf_open(sheaf_str(argv[1]), options, &db, &error));
  EXPECT(SHEAF_LOCKED, sheaf_open(sheaf_str(argv[1]), NULL, (sheaf_db *[]){NULL}, &error));
  sheaf_options_free(options);
  CHECK(releases == 0);

  OK(sheaf_engines(&value, &error));
  CHECK(take_contains(value, "\"name\":\"flex\""));
  CHECK(strlen(sheaf_version()) > 0);
  OK(sheaf_db_path(db, &value, &error));
  CHECK(take_equal(value, argv[1]));
  OK(sheaf_keyspace_options_create(sheaf_str("kreon"), &wide, &error));
  OK(sheaf_keyspace_options_set(wide, sheaf_str("no such option"), 1, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_keyspace(db, sheaf_str("users"), wide, &users, &error));
  sheaf_keyspace_options_free(wide);
  EXPECT(SHEAF_NOT_FOUND, sheaf_db_open_keyspace(db, sheaf_str("users"), &users, &error));
  OK(sheaf_db_create_keyspace(db, sheaf_str("users"), NULL, &users, &error));
  EXPECT(SHEAF_KEYSPACE_EXISTS,
         sheaf_db_create_keyspace(db, sheaf_str("users"), NULL, (sheaf_keyspace *[]){NULL}, &error));
  OK(sheaf_keyspace_name(users, &value, &error));
  CHECK(take_equal(value, "users"));
  OK(sheaf_keyspace_properties(users, &value, &error));
  CHECK(take_contains(value, "\"ordered\":true"));
  OK(sheaf_db_keyspaces(db, &value, &error));
  CHECK(take_contains(value, "\"engine\":\"flex\""));

  test_expiry(db, users);
  test_single_keys(db, users);
  test_estimates(db);
  test_batches(db, users);
  test_transactions(db, users);
  test_merges(db, users);
  test_snapshots(db);
  test_owner(argv[1]);

  OK(sheaf_keyspace_stats(users, &value, &error));
  CHECK(take_contains(value, "\"keys\":1"));
  OK(sheaf_keyspace_reset_workload(users, &error));
  OK(sheaf_db_persist(db, &error));
  OK(sheaf_db_quiesce(db, &error));
  OK(sheaf_db_drop_keyspace(db, sheaf_str("users"), &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_db_drop_keyspace(db, sheaf_str("users"), &error));
  EXPECT(SHEAF_KEYSPACE_NOT_FOUND, sheaf_remove(users, sheaf_str("x"), &error));
  sheaf_keyspace_free(users);
  OK(sheaf_db_close(db, &error));
  sheaf_db_free(db);
  CHECK(releases == 1);
  return 0;
}
