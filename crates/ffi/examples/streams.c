/* Large values as streams, and a bulk load of sorted pairs. */

#include "../tests/c/check.h"

/* Returns 100,000 bytes of a value in parts. */
static size_t source(void *context, void *buffer, size_t size) {
  size_t *left = context;
  size_t count = *left < size ? *left : size;
  memset(buffer, 'x', count);
  *left -= count;
  return count;
}

int main(int argc, char **argv) {
  CHECK(argc == 2);
  sheaf_db *db;
  sheaf_keyspace *files;
  OK(sheaf_open(sheaf_str(argv[1]), NULL, &db, &error));
  OK(sheaf_db_keyspace(db, sheaf_str("files"), NULL, &files, &error));

  /* Writes a value of 1 MiB in parts. Nothing is visible before the commit. */
  static char part[65536];
  sheaf_writer *writer;
  OK(sheaf_writer_open(files, sheaf_str("large"), &writer, &error));
  for (int i = 0; i < 16; i++) {
    memset(part, 'a' + i, sizeof part);
    OK(sheaf_writer_write(writer, sheaf_bytes_of(part, sizeof part), &error));
  }
  OK(sheaf_writer_commit(writer, &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_writer_commit(writer, &error));
  sheaf_writer_free(writer);

  /* Reads parts of it. */
  sheaf_reader *reader;
  uint64_t size;
  size_t count;
  OK(sheaf_reader_open(files, sheaf_str("large"), &reader, &error));
  OK(sheaf_reader_size(reader, &size, &error));
  CHECK(size == 16 * sizeof part);
  OK(sheaf_reader_read_at(reader, size - 10, sheaf_buffer_of(part, sizeof part), &count, &error));
  CHECK(count == 10 && memcmp(part, "pppppppppp", 10) == 0);
  sheaf_reader_free(reader);

  /* Loads sorted pairs as a new keyspace. */
  sheaf_loader_options *options;
  sheaf_loader *loader;
  sheaf_value *report;
  OK(sheaf_loader_options_create(sheaf_str("flex"), SHEAF_LOAD_REPLACE, &options, &error));
  OK(sheaf_db_bulk_load(db, sheaf_str("words"), options, &loader, &error));
  sheaf_loader_options_free(options);
  OK(sheaf_loader_push(loader, sheaf_str("a"), sheaf_str("1"), &error));
  OK(sheaf_loader_push(loader, sheaf_str("b"), sheaf_str("2"), &error));
  EXPECT(SHEAF_INVALID_ARGUMENT, sheaf_loader_push(loader, sheaf_str("a"), sheaf_str("3"), &error));
  size_t left = 100000;
  OK(sheaf_loader_push_source(loader, sheaf_str("c"), source, &left, &size, &error));
  CHECK(size == 100000);
  OK(sheaf_loader_progress(loader, &report, &error));
  CHECK(take_contains(report, "\"pairs\":3"));
  OK(sheaf_loader_finish(loader, NULL, NULL, &report, &error));
  CHECK(take_contains(report, "\"pairs\":3"));
  sheaf_loader_free(loader);

  /* Adds sorted pairs to the keyspace, which keeps its others. */
  sheaf_keyspace *words;
  sheaf_value *value;
  OK(sheaf_loader_options_create(sheaf_str(""), SHEAF_LOAD_KEEP, &options, &error));
  OK(sheaf_db_bulk_load(db, sheaf_str("words"), options, &loader, &error));
  sheaf_loader_options_free(options);
  OK(sheaf_loader_push(loader, sheaf_str("b"), sheaf_str("two"), &error));
  OK(sheaf_loader_push(loader, sheaf_str("d"), sheaf_str("4"), &error));
  OK(sheaf_loader_finish(loader, NULL, NULL, NULL, &error));
  sheaf_loader_free(loader);
  OK(sheaf_db_open_keyspace(db, sheaf_str("words"), &words, &error));
  OK(sheaf_get(words, sheaf_str("a"), &value, &error));
  CHECK(take_contains(value, "1"));
  OK(sheaf_get(words, sheaf_str("b"), &value, &error));
  CHECK(take_contains(value, "two"));
  OK(sheaf_contains_key(words, sheaf_str("d"), &error));
  sheaf_keyspace_free(words);

  sheaf_keyspace_free(files);
  OK(sheaf_db_close(db, &error));
  sheaf_db_free(db);
  return 0;
}
