/* Bad input: NULL, wrong sizes, closed handles, failing callbacks, handles in use. Each case must
 * return an error code, and none may end the process. */

#define _GNU_SOURCE /* MAP_NORESERVE */

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>

#include "check.h"

static int32_t cancel(void *context, const sheaf_bytes *old, sheaf_new_value *new_value) {
  (void)context, (void)old, (void)new_value;
  return SHEAF_CHANGE_CANCEL;
}

static int32_t wrong_answer(void *context, const sheaf_bytes *old, sheaf_new_value *new_value) {
  (void)context, (void)old, (void)new_value;
  return 77;
}

static size_t wrong_source(void *context, void *buffer, size_t size) {
  (void)context, (void)buffer;
  return size + 1;
}

static int32_t stop(void *context, int32_t phase, uint64_t done, uint64_t total) {
  (void)context, (void)phase, (void)done, (void)total;
  return 1;
}

/* Uses the loader of the outer call. */
static size_t reentrant_source(void *context, void *buffer, size_t size) {
  (void)buffer, (void)size;
  EXPECT(SHEAF_HANDLE_IN_USE, sheaf_loader_push(context, sheaf_str("z"), sheaf_str(""), &error));
  return 0;
}

static void test_null(const char *path, sheaf_keyspace *users, sheaf_db *db) {
  sheaf_bytes key = sheaf_str("ada");
  sheaf_value *value = (sheaf_value *)path; /* must be overwritten */
  sheaf_db *opened;
  sheaf_keyspace *keyspace;
  sheaf_batch *batch;
  size_t size;
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_get(NULL, key, &value, &error));
  CHECK(value == NULL);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_get(users, key, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_insert(NULL, key, key, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_iter_next(NULL, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_batch_commit(NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_close(NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_batch(NULL, &batch, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_keyspace(NULL, key, NULL, &keyspace, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_open(sheaf_str(path), NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_open(sheaf_bytes_of(NULL, 0), NULL, &opened, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_open(sheaf_bytes_of("a\0b", 3), NULL, &opened, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_update(users, key, NULL, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_read_with(users, key, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_first(users, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_convert(db, key, NULL, NULL, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_multi_get(users, NULL, 3, &value, &error));
  CHECK(sheaf_options_set_memory(NULL, 1) == SHEAF_INVALID_ARGUMENT);
  CHECK(sheaf_new_value_append(NULL, key) == SHEAF_INVALID_ARGUMENT);
  CHECK(sheaf_insert(NULL, key, key, NULL) == SHEAF_INVALID_ARGUMENT); /* no place for the error */
  CHECK(sheaf_value_bytes(NULL).size == 0 && sheaf_db_seq(NULL) == 0 && sheaf_snapshot_seq(NULL) == 0);
  CHECK(sheaf_ticket_seq(NULL) == 0 && !sheaf_ticket_is_durable(NULL));
  CHECK(sheaf_error_code(NULL) == SHEAF_OK && strcmp(sheaf_error_message(NULL, &size), "") == 0);
  CHECK(!sheaf_error_text(NULL, SHEAF_FIELD_PATH, NULL) && size == 0);
  sheaf_db_free(NULL), sheaf_keyspace_free(NULL), sheaf_value_free(NULL), sheaf_error_free(NULL);
  sheaf_iter_free(NULL), sheaf_batch_free(NULL), sheaf_snapshot_free(NULL), sheaf_owner_free(NULL);
  sheaf_reader_free(NULL), sheaf_writer_free(NULL), sheaf_loader_free(NULL), sheaf_ticket_free(NULL);
  sheaf_options_free(NULL), sheaf_keyspace_options_free(NULL), sheaf_loader_options_free(NULL);
}

static void test_sizes(sheaf_db *db, sheaf_keyspace *users) {
  static char large[70000];
  sheaf_bytes key = sheaf_str("ada");
  sheaf_keyspace *keyspace;
  size_t size = 7;
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_insert(users, sheaf_bytes_of(NULL, 5), key, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_insert(users, key, sheaf_bytes_of("x", SIZE_MAX), &error));
  EXPECT(SHEAF_TOO_LARGE, sheaf_insert(users, sheaf_bytes_of(large, sizeof large), key, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_get_into(users, sheaf_str("there"), sheaf_buffer_of(NULL, 5), &size, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_get_into(users, sheaf_str("no"), sheaf_buffer_of(NULL, 0), &size, &error));
  CHECK(size == 0);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_multi_get(users, &key, SIZE_MAX, (sheaf_value *[]){NULL}, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_keyspace(db, sheaf_str(""), NULL, &keyspace, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_keyspace(db, sheaf_str("\xff\xfe"), NULL, &keyspace, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_submit_remove(users, key, 99, (sheaf_ticket *[]){NULL}, &error));
  sheaf_options *options;
  sheaf_db *opened;
  OK(sheaf_options_create(&options, &error));
  CHECK(sheaf_options_set_durability(options, -1) == SHEAF_INVALID_ARGUMENT);
  CHECK(sheaf_options_set_persistent_memory(options, 9) == SHEAF_INVALID_ARGUMENT);
  CHECK(sheaf_options_set_stall_callback(options, NULL, NULL, NULL, 1) == SHEAF_INVALID_ARGUMENT);
  CHECK(sheaf_options_set_space_limit(options, 0.5) == SHEAF_OK);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_open(sheaf_str("unused.db"), options, &opened, &error));
  CHECK(opened == NULL);
  sheaf_options_free(options);

  sheaf_error *error;
  CHECK(sheaf_insert(users, sheaf_bytes_of(large, sizeof large), key, &error) == SHEAF_TOO_LARGE);
  uint64_t found, limit;
  sheaf_bytes name;
  CHECK(sheaf_error_number(error, SHEAF_FIELD_FOUND, &found) && found == sizeof large);
  CHECK(sheaf_error_number(error, SHEAF_FIELD_LIMIT, &limit) && limit == 65535);
  CHECK(sheaf_error_text(error, SHEAF_FIELD_NAME, &name) && equal(name, "key"));
  CHECK(!sheaf_error_text(error, SHEAF_FIELD_PATH, &name) && !sheaf_error_number(error, 1000, &found));
  sheaf_error_free(error);
}

static void test_callbacks(sheaf_db *db, sheaf_keyspace *users, const char *directory) {
  char *backup = path_in(directory, "backup");
  sheaf_value *value;
  sheaf_loader *loader;
  sheaf_keyspace_options *flat;
  EXPECT(SHEAF_CANCELLED, sheaf_update(users, sheaf_str("new"), cancel, NULL, &value, &error));
  CHECK(value == NULL);
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_update(users, sheaf_str("new"), wrong_answer, NULL, &value, &error));
  EXPECT(SHEAF_NOT_FOUND, sheaf_contains_key(users, sheaf_str("new"), &error));
  EXPECT(SHEAF_CANCELLED,
         sheaf_db_backup(db, sheaf_str(backup), NULL, true, 0, stop, NULL, NULL, &error));
  OK(sheaf_keyspace_options_create(sheaf_str("flat"), &flat, &error));
  EXPECT(SHEAF_CANCELLED, sheaf_db_convert(db, sheaf_str("users"), flat, stop, NULL, NULL, &error));
  sheaf_keyspace_options_free(flat);
  OK(sheaf_db_bulk_load(db, sheaf_str("loaded"), NULL, &loader, &error));
  EXPECT(SHEAF_CANCELLED, sheaf_loader_push_source(loader, sheaf_str("a"), wrong_source, NULL, NULL, &error));
  sheaf_loader_free(loader);
  OK(sheaf_db_bulk_load(db, sheaf_str("loaded"), NULL, &loader, &error));
  OK(sheaf_loader_push_source(loader, sheaf_str("a"), reentrant_source, loader, NULL, &error));
  OK(sheaf_loader_finish(loader, NULL, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_loader_finish(loader, NULL, NULL, NULL, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_loader_push(loader, sheaf_str("b"), sheaf_str(""), &error));
  sheaf_loader_free(loader);
  sheaf_loader_options *options;
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_loader_options_create(sheaf_str(""), 3, &options, &error));
  OK(sheaf_loader_options_create(sheaf_str(""), SHEAF_LOAD_EMPTY, &options, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_db_bulk_load(db, sheaf_str("loaded"), options, &loader, &error));
  sheaf_loader_options_free(options);
  OK(sheaf_loader_options_create(sheaf_str(""), SHEAF_LOAD_KEEP, &options, &error));
  OK(sheaf_db_bulk_load(db, sheaf_str("loaded"), options, &loader, &error));
  sheaf_loader_options_free(options);
  EXPECT(SHEAF_INVALID_ARGUMENT,
         sheaf_loader_push_with_expiry(loader, sheaf_str("b"), sheaf_str(""), 1, &error));
  OK(sheaf_loader_push(loader, sheaf_str("b"), sheaf_str(""), &error));
  EXPECT(SHEAF_CANCELLED, sheaf_loader_finish(loader, stop, NULL, NULL, &error));
  sheaf_loader_free(loader);
  free(backup);
}

/* Calls one iterator and one batch in two threads: each call succeeds or returns the code of a
 * handle in use. */
struct shared {
  sheaf_iter *iter;
  sheaf_batch *batch;
  sheaf_keyspace *users;
};

static void *hammer(void *context) {
  struct shared *shared = context;
  for (int i = 0; i < 2000; i++) {
    sheaf_code code = sheaf_iter_seek(shared->iter, sheaf_str("a"), NULL);
    CHECK(code == SHEAF_OK || code == SHEAF_HANDLE_IN_USE);
    code = sheaf_iter_next(shared->iter, NULL, NULL, NULL);
    CHECK(code == SHEAF_OK || code == SHEAF_NOT_FOUND || code == SHEAF_HANDLE_IN_USE);
    code = sheaf_batch_insert(shared->batch, shared->users, sheaf_str("k"), sheaf_str("v"), NULL);
    CHECK(code == SHEAF_OK || code == SHEAF_HANDLE_IN_USE);
  }
  return NULL;
}

static void test_threads(sheaf_db *db, sheaf_keyspace *users) {
  struct shared shared = {NULL, NULL, users};
  pthread_t threads[2];
  OK(sheaf_range(users, NULL, NULL, &shared.iter, &error));
  OK(sheaf_db_batch(db, &shared.batch, &error));
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_create(&threads[i], NULL, hammer, &shared) == 0);
  }
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  sheaf_iter_free(shared.iter);
  sheaf_batch_free(shared.batch);
}

/* A value of 100 MiB is stored; one of 4 GiB is refused before it is read. */
static void test_huge(sheaf_keyspace *users) {
  size_t size = 100u << 20, longest = (size_t)1 << 32;
  char *bytes = malloc(size);
  CHECK(bytes != NULL);
  memset(bytes, 'h', size);
  sheaf_value *value;
  OK(sheaf_insert(users, sheaf_str("huge"), sheaf_bytes_of(bytes, size), &error));
  OK(sheaf_get(users, sheaf_str("huge"), &value, &error));
  sheaf_bytes found = sheaf_value_bytes(value);
  CHECK(found.size == size && memcmp(found.data, bytes, size) == 0);
  sheaf_value_free(value);
  OK(sheaf_remove(users, sheaf_str("huge"), &error));
  free(bytes);
  void *empty = mmap(NULL, longest, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  CHECK(empty != MAP_FAILED);
  EXPECT(SHEAF_TOO_LARGE, sheaf_insert(users, sheaf_str("huge"), sheaf_bytes_of(empty, longest), &error));
  CHECK(munmap(empty, longest) == 0);
}

static volatile sig_atomic_t signals;

static void count_signal(int number) {
  (void)number;
  signals = signals + 1;
}

/* Signals interrupt system calls, which the library repeats. */
static void test_signals(sheaf_db *db, sheaf_keyspace *users, const char *directory) {
  char *backup = path_in(directory, "interrupted");
  struct sigaction action = {.sa_handler = count_signal}; /* without SA_RESTART */
  struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
  sheaf_ticket *ticket;
  CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
  for (int turn = 0; turn < 20 || signals < 20; turn++) {
    OK(sheaf_submit_insert(users, sheaf_str("there"), sheaf_str("value"), SHEAF_DURABILITY_SYNC, &ticket, &error));
    OK(sheaf_ticket_wait(ticket, &error));
    sheaf_ticket_free(ticket);
  }
  OK(sheaf_db_backup(db, sheaf_str(backup), NULL, true, 0, NULL, NULL, NULL, &error));
  OK(sheaf_db_quiesce(db, &error));
  CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
  free(backup);
}

/* Iterates until the database is closed. */
static void *iterate(void *context) {
  sheaf_code code = SHEAF_OK;
  sheaf_iter *iter;
  while (code == SHEAF_OK) {
    code = sheaf_range(context, NULL, NULL, &iter, NULL);
    while (code == SHEAF_OK) {
      code = sheaf_iter_next(iter, NULL, NULL, NULL);
    }
    sheaf_iter_free(iter);
    code = code == SHEAF_NOT_FOUND ? SHEAF_OK : code;
  }
  CHECK(code == SHEAF_CLOSED);
  return NULL;
}

static void test_close_during_iteration(const char *directory) {
  char *path = path_in(directory, "iterated");
  sheaf_db *db;
  sheaf_keyspace *users;
  pthread_t threads[2];
  OK(sheaf_open(sheaf_str(path), NULL, &db, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("users"), NULL, &users, &error));
  for (int index = 0; index < 2000; index++) {
    OK(sheaf_insert(users, sheaf_bytes_of(&index, sizeof index), sheaf_str("value"), &error));
  }
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_create(&threads[i], NULL, iterate, users) == 0);
  }
  OK(sheaf_db_close(db, &error));
  for (int i = 0; i < 2; i++) {
    CHECK(pthread_join(threads[i], NULL) == 0);
  }
  sheaf_keyspace_free(users);
  sheaf_db_free(db);
  free(path);
}

/* Uses every kind of handle after the database was closed. */
static void test_closed(sheaf_db *db, sheaf_keyspace *users) {
  sheaf_iter *iter, *unused;
  sheaf_batch *batch;
  sheaf_snapshot *snapshot;
  sheaf_keyspace *shown;
  sheaf_reader *reader;
  sheaf_writer *writer;
  sheaf_value *value;
  sheaf_bytes key;
  size_t size;
  uint64_t count;
  OK(sheaf_range(users, NULL, NULL, &iter, &error));
  OK(sheaf_iter_next(iter, &key, NULL, &error));
  OK(sheaf_db_batch(db, &batch, &error));
  OK(sheaf_batch_insert(batch, users, sheaf_str("x"), sheaf_str("y"), &error));
  OK(sheaf_db_snapshot(db, &snapshot, &error));
  OK(sheaf_snapshot_keyspace(snapshot, sheaf_str("users"), &shown, &error));
  OK(sheaf_reader_open(users, sheaf_str("there"), &reader, &error));
  OK(sheaf_writer_open(users, sheaf_str("w"), &writer, &error));
  OK(sheaf_writer_write(writer, sheaf_str("bytes"), &error));

  OK(sheaf_db_close(db, &error));
  EXPECT(SHEAF_CLOSED, sheaf_iter_next(iter, &key, NULL, &error));
  CHECK(key.data == NULL && key.size == 0);
  EXPECT(SHEAF_CLOSED, sheaf_get(users, sheaf_str("there"), &value, &error));
  CHECK(value == NULL);
  EXPECT(SHEAF_CLOSED, sheaf_get_into(users, sheaf_str("there"), sheaf_buffer_of(NULL, 0), &size, &error));
  EXPECT(SHEAF_CLOSED, sheaf_get(shown, sheaf_str("there"), &value, &error));
  EXPECT(SHEAF_CLOSED, sheaf_insert(users, sheaf_str("a"), sheaf_str("b"), &error));
  EXPECT(SHEAF_CLOSED, sheaf_batch_commit(batch, &error));
  EXPECT(SHEAF_CLOSED, sheaf_writer_commit(writer, &error));
  EXPECT(SHEAF_CLOSED, sheaf_len(users, &count, &error));
  EXPECT(SHEAF_CLOSED, sheaf_range(shown, NULL, NULL, &unused, &error));
  EXPECT(SHEAF_CLOSED, sheaf_db_snapshot(db, (sheaf_snapshot *[]){NULL}, &error));
  EXPECT(SHEAF_CLOSED, sheaf_db_persist(db, &error));
  EXPECT(SHEAF_CLOSED, sheaf_db_close(db, &error));
  sheaf_iter_free(iter);
  sheaf_batch_free(batch);
  sheaf_keyspace_free(shown);
  sheaf_snapshot_free(snapshot);
  sheaf_reader_free(reader);
  sheaf_writer_free(writer);
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  char *path = path_in(argv[1], "bytes \xff\xfe.db"); /* not UTF-8 */
  char *foreign = path_in(argv[1], "foreign");
  char *file = path_in(foreign, "notes.txt");
  char *mixed = path_in(argv[1], "bytes");
  char *odd = path_in(mixed, "\xff"); /* a foreign name that is not UTF-8 */
  sheaf_db *db;
  sheaf_keyspace *users;
  OK(sheaf_open(sheaf_str(path), NULL, &db, &error));
  CHECK(mkdir(foreign, 0700) == 0 && fclose(fopen(file, "w")) == 0);
  EXPECT(SHEAF_NOT_A_DATABASE, sheaf_open(sheaf_str(foreign), NULL, (sheaf_db *[]){NULL}, &error));
  CHECK(mkdir(mixed, 0700) == 0 && fclose(fopen(odd, "w")) == 0);
  EXPECT(SHEAF_NOT_A_DATABASE, sheaf_open(sheaf_str(mixed), NULL, (sheaf_db *[]){NULL}, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("users"), NULL, &users, &error));
  OK(sheaf_insert(users, sheaf_str("there"), sheaf_str("value"), &error));
  test_null(path, users, db);
  test_sizes(db, users);
  test_callbacks(db, users, argv[1]);
  test_threads(db, users);
  test_huge(users);
  test_signals(db, users, argv[1]);
  test_close_during_iteration(argv[1]);
  test_closed(db, users);
  sheaf_keyspace_free(users);
  sheaf_db_free(db);
  free(path), free(foreign), free(file), free(mixed), free(odd);
  return 0;
}
