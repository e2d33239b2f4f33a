/* Gets through the C library, for the comparison with gets.rs, which fills the database. Prints the
 * nanoseconds on a processor of a get of a random key. */

#include "../tests/c/check.h"

enum { PAIRS = 200000, GETS = 500000 };

/* Writes the key with this number. */
static void make_key(uint64_t number, char *key) {
  memcpy(key, "user000000000000", 16);
  for (int position = 15; number > 0; position--, number /= 10) {
    key[position] = (char)('0' + number % 10);
  }
}

/* Returns the nanoseconds that this thread has run. */
static double now(void) {
  unsigned long long time = 0;
  FILE *file = fopen("/proc/thread-self/schedstat", "r");
  CHECK(file != NULL && fscanf(file, "%llu", &time) == 1);
  fclose(file);
  return (double)time;
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  sheaf_db *db;
  sheaf_keyspace *users;
  OK(sheaf_open(sheaf_str(argv[1]), NULL, &db, &error));
  OK(sheaf_db_open_keyspace(db, sheaf_str("users"), &users, &error));
  uint64_t state = 88172645463325252u, bytes = 0;
  double begin = now();
  for (int get = 0; get < GETS + GETS / 4; get++) {
    if (get == GETS / 4) {
      begin = now(); /* the caches are warm */
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    char key[16], value[128];
    size_t size;
    sheaf_error *error;
    make_key(state % PAIRS, key);
    if (sheaf_get_into(users, sheaf_bytes_of(key, sizeof key), sheaf_buffer_of(value, sizeof value),
                       &size, &error) == SHEAF_OK) {
      bytes += size;
    }
  }
  double elapsed = now() - begin;
  CHECK(bytes == (uint64_t)(GETS + GETS / 4) * 100);
  printf("%.1f\n", elapsed / GETS);
  sheaf_keyspace_free(users);
  sheaf_db_free(db);
  return 0;
}
