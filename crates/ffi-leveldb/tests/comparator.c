/* Custom comparators are refused at the opening, and NULL is an error or has no effect. */

#include <leveldb/c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                              \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                        \
    }                                                                 \
  } while (0)

static void destroy(void *state) { ++*(int *)state; }

static int compare(void *state, const char *a, size_t a_size, const char *b, size_t b_size) {
  (void)state, (void)a, (void)a_size, (void)b, (void)b_size;
  return 0;
}

static const char *name(void *state) {
  (void)state;
  return "test";
}

/* Changes the direction of an iterator at each pair. */
static void test_directions(leveldb_t *db, leveldb_readoptions_t *read) {
  leveldb_iterator_t *iter = leveldb_create_iterator(db, read);
  size_t size;
  leveldb_iter_seek_to_first(iter);
  for (char expected = 'a'; expected <= 'y'; expected++) {
    CHECK(leveldb_iter_valid(iter) && *leveldb_iter_key(iter, &size) == expected && size == 1);
    leveldb_iter_next(iter);
    leveldb_iter_next(iter);
    if (leveldb_iter_valid(iter)) {
      leveldb_iter_prev(iter);
    } else {
      leveldb_iter_seek_to_last(iter);
    }
  }
  CHECK(*leveldb_iter_key(iter, &size) == 'z');
  leveldb_iter_seek(iter, "zz", 2);
  CHECK(!leveldb_iter_valid(iter) && leveldb_iter_key(iter, &size) == NULL && size == 0);
  leveldb_iter_next(iter);
  leveldb_iter_prev(iter);
  CHECK(!leveldb_iter_valid(iter));
  leveldb_iter_destroy(iter);
}

int main(void) {
  int destroyed = 0;
  char *error = NULL;
  leveldb_env_t *env = leveldb_create_default_env();
  char *path = leveldb_env_get_test_directory(env);
  leveldb_comparator_t *comparator = leveldb_comparator_create(&destroyed, destroy, compare, name);
  leveldb_options_t *options = leveldb_options_create();
  leveldb_options_set_create_if_missing(options, 1);
  leveldb_options_set_comparator(options, comparator);
  leveldb_t *db = leveldb_open(options, path, &error);
  CHECK(db == NULL && strstr(error, "custom comparator is not possible") != NULL);
  leveldb_options_set_comparator(options, NULL);
  CHECK(leveldb_open(options, NULL, &error) == NULL && strstr(error, "name is NULL") != NULL);
  leveldb_free(error);
  error = NULL;
  leveldb_comparator_destroy(comparator);
  CHECK(destroyed == 1);

  db = leveldb_open(options, path, &error);
  CHECK(db != NULL && error == NULL);
  leveldb_writeoptions_t *write = leveldb_writeoptions_create();
  leveldb_readoptions_t *read = leveldb_readoptions_create();
  for (char key = 'a'; key <= 'z'; key++) {
    leveldb_put(db, write, &key, 1, NULL, 0, &error);
    CHECK(error == NULL);
  }
  test_directions(db, read);
  leveldb_destroy_db(options, path, &error);
  CHECK(error != NULL); /* the database is open */
  leveldb_put(NULL, write, "a", 1, "", 0, &error);
  CHECK(strstr(error, "db is NULL") != NULL);
  leveldb_free(error);
  error = NULL;
  leveldb_close(db);
  leveldb_destroy_db(options, path, &error);
  CHECK(error == NULL);
  leveldb_close(NULL);
  leveldb_readoptions_destroy(read);
  leveldb_writeoptions_destroy(write);
  leveldb_options_destroy(options);
  leveldb_env_destroy(env);
  leveldb_free(path);
  return 0;
}
