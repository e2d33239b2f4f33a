/* Batches with expectations, snapshots, iterators in both directions, transactions, and merges. */

#include "../tests/c/check.h"

/* Changes the stock of bob from 0 to 1, or to 0. Other threads may do the same. */
static void change_stock(sheaf_db *db, sheaf_keyspace *accounts) {
  sheaf_code code;
  do {
    sheaf_transaction *transaction;
    sheaf_value *stock;
    OK(sheaf_db_transaction(db, &transaction, &error));
    OK(sheaf_transaction_get(transaction, accounts, sheaf_str("bob"), &stock, &error));
    int is_empty = take_equal(stock, "0");
    OK(sheaf_transaction_insert(transaction, accounts, sheaf_str("bob"), sheaf_str(is_empty ? "1" : "0"), &error));
    sheaf_error *error;
    code = sheaf_transaction_commit(transaction, &error);
    sheaf_error_free(error);
    sheaf_transaction_free(transaction);
  } while (code == SHEAF_CONFLICT);
  CHECK(code == SHEAF_OK);
}

/* Appends to a value. Threads that merge the same key share commits. */
static void append_to_log(sheaf_db *db) {
  sheaf_value *value;
  sheaf_keyspace_options *options;
  sheaf_keyspace *log;
  OK(sheaf_keyspace_options_create(sheaf_str("flex"), &options, &error));
  OK(sheaf_keyspace_options_set_merge_operator(options, sheaf_str("append"), &error));
  OK(sheaf_db_keyspace(db, sheaf_str("log"), options, &log, &error));
  OK(sheaf_merge(log, sheaf_str("today"), sheaf_str("started;"), &error));
  OK(sheaf_merge(log, sheaf_str("today"), sheaf_str("stopped;"), &error));
  OK(sheaf_get(log, sheaf_str("today"), &value, &error));
  CHECK(take_equal(value, "started;stopped;"));
  sheaf_keyspace_options_free(options);
  sheaf_keyspace_free(log);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  sheaf_db *db;
  sheaf_keyspace *accounts;
  OK(sheaf_open(sheaf_str(argv[1]), NULL, &db, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("accounts"), NULL, &accounts, &error));
  OK(sheaf_insert(accounts, sheaf_str("ada"), sheaf_str("100"), &error));
  OK(sheaf_insert(accounts, sheaf_str("alan"), sheaf_str("50"), &error));
  OK(sheaf_insert(accounts, sheaf_str("bob"), sheaf_str("0"), &error));

  sheaf_snapshot *snapshot;
  sheaf_keyspace *before;
  OK(sheaf_db_snapshot(db, &snapshot, &error));
  OK(sheaf_snapshot_keyspace(snapshot, sheaf_str("accounts"), &before, &error));

  /* Moves 10 from one account to another, if no other thread changed them. */
  sheaf_batch *batch;
  sheaf_bytes ada = sheaf_str("100"), alan = sheaf_str("50");
  OK(sheaf_db_batch(db, &batch, &error));
  OK(sheaf_batch_expect(batch, accounts, sheaf_str("ada"), &ada, &error));
  OK(sheaf_batch_expect(batch, accounts, sheaf_str("alan"), &alan, &error));
  OK(sheaf_batch_insert(batch, accounts, sheaf_str("ada"), sheaf_str("90"), &error));
  OK(sheaf_batch_insert(batch, accounts, sheaf_str("alan"), sheaf_str("60"), &error));
  OK(sheaf_batch_set_durability(batch, SHEAF_DURABILITY_SYNC, &error));
  OK(sheaf_batch_commit(batch, &error));

  /* The same again: the expectation does not hold. */
  OK(sheaf_batch_expect(batch, accounts, sheaf_str("ada"), &ada, &error));
  OK(sheaf_batch_remove(batch, accounts, sheaf_str("ada"), &error));
  EXPECT(SHEAF_CONFLICT, sheaf_batch_commit(batch, &error));
  sheaf_batch_free(batch);

  /* The snapshot shows the state before the batch. */
  sheaf_value *value;
  OK(sheaf_get(before, sheaf_str("ada"), &value, &error));
  CHECK(take_equal(value, "100"));
  EXPECT(SHEAF_READ_ONLY, sheaf_remove(before, sheaf_str("ada"), &error));

  /* Iterates over the keys that start with "a", from both ends. */
  sheaf_iter *iter;
  sheaf_bytes key, content;
  OK(sheaf_prefix(accounts, sheaf_str("a"), &iter, &error));
  OK(sheaf_iter_next(iter, &key, &content, &error));
  CHECK(equal(key, "ada") && equal(content, "90"));
  OK(sheaf_iter_next_back(iter, &key, &content, &error));
  CHECK(equal(key, "alan") && equal(content, "60"));
  EXPECT(SHEAF_NOT_FOUND, sheaf_iter_next(iter, &key, &content, &error));
  sheaf_iter_free(iter);

  sheaf_error *error;
  sheaf_code code;
  OK(sheaf_range(accounts, NULL, NULL, &iter, &error));
  while ((code = sheaf_iter_next(iter, &key, &content, &error)) == SHEAF_OK) {
    printf("%.*s = %.*s\n", (int)key.size, (const char *)key.data, (int)content.size,
           (const char *)content.data);
  }
  CHECK(code == SHEAF_NOT_FOUND);
  OK(sheaf_iter_seek(iter, sheaf_str("b"), &error));
  OK(sheaf_iter_next(iter, &key, NULL, &error));
  CHECK(equal(key, "bob"));
  OK(sheaf_iter_seek_back(iter, sheaf_str("alban"), &error));

  change_stock(db, accounts);
  OK(sheaf_get(accounts, sheaf_str("bob"), &value, &error));
  CHECK(take_equal(value, "1"));
  append_to_log(db);

  /* Handles may be freed in any order. */
  sheaf_db_free(db);
  sheaf_iter_free(iter);
  sheaf_keyspace_free(before);
  sheaf_keyspace_free(accounts);
  sheaf_snapshot_free(snapshot);
  return 0;
}
