/*
 * sheaf.h: C interface of Sheaf, an embedded key-value database.
 *
 * Generated from the crate sheaf-ffi. Do not edit; `cargo xtask bindings --update` writes it.
 *
 * Handles. All types without fields are opaque handles. A function writes a new handle to a pointer
 * of the caller, and NULL after an error. Each handle must be freed with the function of its type
 * that ends in `_free`, which accepts NULL. A handle must not be used after that. Handles keep the
 * database open: they may be freed in any order.
 *
 * Results. Functions return SHEAF_OK or another code. If `error` is not NULL, they write an error
 * object to it, or NULL if there is none; the caller frees it with sheaf_error_free. NULL as a handle
 * or a required pointer returns SHEAF_INVALID_ARGUMENT. After sheaf_db_close all handles of the
 * database return SHEAF_CLOSED.
 *
 * Memory. Every pointer to bytes has a size. The library copies arguments; it does not keep pointers
 * after the call, except the context of a stall callback.
 *
 * Threads. Each function states its rules. A function may be called from any thread. "One at a time"
 * means that two calls with the same handle must not overlap; the second one returns
 * SHEAF_HANDLE_IN_USE. In a forked child all handles return SHEAF_CLOSED.
 *
 * Callbacks must return: they must not call longjmp or throw an exception.
 */


#ifndef SHEAF_H
#define SHEAF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#define SHEAF_INLINE inline
#else
#define SHEAF_INLINE static inline
#endif


/**
 * Result of a function. Codes from 10 on are errors with an error object; the codes below are not.
 */
enum sheaf_code
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Success.
   */
  SHEAF_OK = 0,
  /**
   * The key, the keyspace or the next pair does not exist. No error object is made.
   */
  SHEAF_NOT_FOUND = 1,
  /**
   * The buffer of the caller is smaller than the value; nothing was copied. No error object is
   * made.
   */
  SHEAF_BUFFER_TOO_SMALL = 2,
  /**
   * An argument is NULL, out of range, or does not fit to the others.
   */
  SHEAF_INVALID_ARGUMENT = 10,
  /**
   * The database was closed, or the process is a forked child.
   */
  SHEAF_CLOSED = 11,
  /**
   * The database was opened for reading only, or the keyspace belongs to a snapshot.
   */
  SHEAF_READ_ONLY = 12,
  /**
   * An expectation does not hold. Nothing was written.
   */
  SHEAF_CONFLICT = 13,
  /**
   * The write would have to wait for background work. Nothing was written.
   */
  SHEAF_BUSY = 14,
  /**
   * A callback cancelled the operation.
   */
  SHEAF_CANCELLED = 15,
  /**
   * A key, a value or a batch exceeds its limit.
   */
  SHEAF_TOO_LARGE = 16,
  /**
   * The engine does not support the operation.
   */
  SHEAF_UNSUPPORTED = 17,
  /**
   * The keyspace does not exist.
   */
  SHEAF_KEYSPACE_NOT_FOUND = 18,
  /**
   * The keyspace exists already.
   */
  SHEAF_KEYSPACE_EXISTS = 19,
  /**
   * The keyspace has another engine, or another value of an option.
   */
  SHEAF_ENGINE_MISMATCH = 20,
  /**
   * There is no database at the path.
   */
  SHEAF_DATABASE_NOT_FOUND = 21,
  /**
   * The directory contains other files.
   */
  SHEAF_NOT_A_DATABASE = 22,
  /**
   * The directory is not a complete backup.
   */
  SHEAF_NOT_A_BACKUP = 23,
  /**
   * This build does not support the format version.
   */
  SHEAF_UNSUPPORTED_VERSION = 24,
  /**
   * Another process or handle has the database open.
   */
  SHEAF_LOCKED = 25,
  /**
   * The process that has the database open closed it or ended.
   */
  SHEAF_OWNER_CLOSED = 26,
  /**
   * The process that has the database open does not answer.
   */
  SHEAF_OWNER_UNRESPONSIVE = 27,
  /**
   * The memory budget has no room for more keys.
   */
  SHEAF_MEMORY_BUDGET_EXCEEDED = 28,
  /**
   * The changes after a position of the change feed are no longer retained.
   */
  SHEAF_CHANGES_TOO_OLD = 29,
  /**
   * The operating system failed an operation.
   */
  SHEAF_IO = 40,
  /**
   * The disk is full.
   */
  SHEAF_NO_SPACE = 41,
  /**
   * No file descriptor is left.
   */
  SHEAF_TOO_MANY_FILES = 42,
  /**
   * A file would exceed the limit of the process on the size of files.
   */
  SHEAF_FILE_SIZE_LIMIT = 43,
  /**
   * Stored bytes are damaged.
   */
  SHEAF_CORRUPT = 44,
  /**
   * The database refuses writes after a failed sync. Close it and open it again.
   */
  SHEAF_POISONED = 45,
  /**
   * Another call uses the handle, in another thread or around a callback.
   */
  SHEAF_HANDLE_IN_USE = 60,
  /**
   * A bug: the library panicked. The message has the reason. Close the database.
   */
  SHEAF_PANIC = 61,
  /**
   * An error without a code of its own; the message has the reason.
   */
  SHEAF_OTHER = 62,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_code sheaf_code;
#else
typedef int32_t sheaf_code;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Moment when a commit is acknowledged.
 */
enum sheaf_durability
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * When the commit survives the end of the process. The device has it about 100 ms later.
   */
  SHEAF_DURABILITY_BUFFER = 1,
  /**
   * When the commit is on the device.
   */
  SHEAF_DURABILITY_SYNC = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_durability sheaf_durability;
#else
typedef int32_t sheaf_durability;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Field of an error object.
 */
enum sheaf_error_field
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Text: path of the file or directory.
   */
  SHEAF_FIELD_PATH = 1,
  /**
   * Text: name of the keyspace, the argument, or the object that is too large.
   */
  SHEAF_FIELD_NAME = 2,
  /**
   * Text: the failed operation, for example `read` or `sync`.
   */
  SHEAF_FIELD_OPERATION = 3,
  /**
   * Text: the damaged structure, the missing feature, the cause or the reason.
   */
  SHEAF_FIELD_REASON = 4,
  /**
   * Text: name of the engine.
   */
  SHEAF_FIELD_ENGINE = 5,
  /**
   * Text: name of the program that has the database open.
   */
  SHEAF_FIELD_PROGRAM = 6,
  /**
   * Number: offset of the damage in bytes.
   */
  SHEAF_FIELD_OFFSET = 32,
  /**
   * Number: error number of the operating system (`errno`).
   */
  SHEAF_FIELD_OS_ERROR = 33,
  /**
   * Number: id of the process that has the database open.
   */
  SHEAF_FIELD_PID = 34,
  /**
   * Number: the size or version that was found, or the commit of the position.
   */
  SHEAF_FIELD_FOUND = 35,
  /**
   * Number: the largest permitted size, the limit, the supported version, or the commit of the
   * oldest position.
   */
  SHEAF_FIELD_LIMIT = 36,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_error_field sheaf_error_field;
#else
typedef int32_t sheaf_error_field;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Files in persistent memory.
 */
enum sheaf_persistent_memory
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Files on a disk (default).
   */
  SHEAF_PERSISTENT_MEMORY_OFF = 0,
  /**
   * Files on a DAX file system in persistent memory.
   */
  SHEAF_PERSISTENT_MEMORY_DAX = 1,
  /**
   * Any file system, with the same code; for tests.
   */
  SHEAF_PERSISTENT_MEMORY_SUBSTITUTE = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_persistent_memory sheaf_persistent_memory;
#else
typedef int32_t sheaf_persistent_memory;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Pairs that a keyspace has before a bulk load.
 */
enum sheaf_load_mode
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * The keyspace must not exist, or must be empty (default).
   */
  SHEAF_LOAD_EMPTY = 0,
  /**
   * The load discards the pairs of the keyspace.
   */
  SHEAF_LOAD_REPLACE = 1,
  /**
   * The keyspace keeps its pairs; a loaded pair replaces the one with the same key.
   */
  SHEAF_LOAD_KEEP = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_load_mode sheaf_load_mode;
#else
typedef int32_t sheaf_load_mode;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Phase of a long operation, for its progress callback.
 */
enum sheaf_phase
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Copies data. Backup, restore and repair count bytes, a conversion counts pairs.
   */
  SHEAF_PHASE_COPYING = 0,
  /**
   * Reads the copy back and verifies it; counts bytes.
   */
  SHEAF_PHASE_VERIFYING = 1,
  /**
   * Copies the pairs that were written during the conversion; counts pairs.
   */
  SHEAF_PHASE_CATCHING_UP = 2,
  /**
   * Finished.
   */
  SHEAF_PHASE_DONE = 3,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_phase sheaf_phase;
#else
typedef int32_t sheaf_phase;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Answer of a callback of `sheaf_update`.
 */
enum sheaf_change
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * Sets the key to the bytes that were appended to the new value.
   */
  SHEAF_CHANGE_SET = 0,
  /**
   * Removes the key.
   */
  SHEAF_CHANGE_REMOVE = 1,
  /**
   * Changes nothing; the call returns `SHEAF_CANCELLED`.
   */
  SHEAF_CHANGE_CANCEL = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_change sheaf_change;
#else
typedef int32_t sheaf_change;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Kind of a change in the change feed.
 */
enum sheaf_change_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
  /**
   * A kind that this version of the interface does not know.
   */
  SHEAF_CHANGE_KIND_OTHER = 0,
  /**
   * A key got a value.
   */
  SHEAF_CHANGE_KIND_PUT = 1,
  /**
   * A key was removed.
   */
  SHEAF_CHANGE_KIND_REMOVED = 2,
  /**
   * All keys of a range were removed.
   */
  SHEAF_CHANGE_KIND_RANGE_REMOVED = 3,
  /**
   * An expired pair was removed.
   */
  SHEAF_CHANGE_KIND_EXPIRED = 4,
  /**
   * The keyspace was created.
   */
  SHEAF_CHANGE_KIND_CREATED = 5,
  /**
   * All pairs of the keyspace were removed.
   */
  SHEAF_CHANGE_KIND_CLEARED = 6,
  /**
   * A bulk load replaced the pairs. They are not in the feed: copy them from a snapshot.
   */
  SHEAF_CHANGE_KIND_LOADED = 7,
  /**
   * The keyspace was moved to another engine or other options. The pairs are the same.
   */
  SHEAF_CHANGE_KIND_CONVERTED = 8,
  /**
   * The keyspace was dropped.
   */
  SHEAF_CHANGE_KIND_DROPPED = 9,
  /**
   * The keyspace got another name, the end of the change.
   */
  SHEAF_CHANGE_KIND_RENAMED = 10,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum sheaf_change_kind sheaf_change_kind;
#else
typedef int32_t sheaf_change_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

/**
 * Operations that become one atomic commit.
 */
typedef struct sheaf_batch sheaf_batch;

/**
 * Named, durable position of a consumer of the change feed.
 */
typedef struct sheaf_change_cursor sheaf_change_cursor;

/**
 * The changes after a position, commit by commit.
 */
typedef struct sheaf_changes sheaf_changes;

/**
 * An open database.
 */
typedef struct sheaf_db sheaf_db;

/**
 * An error: a code, a message, and fields.
 */
typedef struct sheaf_error sheaf_error;

/**
 * Iterator over the pairs or the keys of a keyspace.
 */
typedef struct sheaf_iter sheaf_iter;

/**
 * A map from bytes to bytes: a keyspace of the database, or one of a snapshot.
 */
typedef struct sheaf_keyspace sheaf_keyspace;

/**
 * Options of a keyspace at its creation.
 */
typedef struct sheaf_keyspace_options sheaf_keyspace_options;

/**
 * A running bulk load. Nothing is visible before its end.
 */
typedef struct sheaf_loader sheaf_loader;

/**
 * Options of a bulk load.
 */
typedef struct sheaf_loader_options sheaf_loader_options;

/**
 * Value that a callback of `sheaf_update` assembles.
 */
typedef struct sheaf_new_value sheaf_new_value;

/**
 * Options for opening a database.
 */
typedef struct sheaf_options sheaf_options;

/**
 * A connection to the process that has a database open.
 */
typedef struct sheaf_owner sheaf_owner;

/**
 * Stream that reads a value.
 */
typedef struct sheaf_reader sheaf_reader;

/**
 * A read-only view of all keyspaces as of one commit. Disk space of data that is overwritten later
 * is reclaimed after the snapshot, its keyspaces and its iterators were freed.
 */
typedef struct sheaf_snapshot sheaf_snapshot;

/**
 * A submitted commit.
 */
typedef struct sheaf_ticket sheaf_ticket;

/**
 * Reads of one snapshot and changes, which become one atomic commit.
 */
typedef struct sheaf_transaction sheaf_transaction;

/**
 * Owned bytes that a function returned.
 */
typedef struct sheaf_value sheaf_value;

/**
 * Stream that creates a value. Nothing is visible before the commit.
 */
typedef struct sheaf_writer sheaf_writer;

/**
 * Bytes that the callee only reads during the call. `data` may be NULL if `size` is 0. In results
 * the bytes belong to the handle; the function states how long they are valid.
 */
typedef struct {
  /**
   * First byte.
   */
  const void *data;
  /**
   * Number of bytes.
   */
  size_t size;
} sheaf_bytes;

/**
 * Reads the next bytes of a value into `buffer` of `size` bytes, and returns their number: 0 at
 * the end of the value, and a number above `size` to cancel. Runs in the thread of the call.
 */
typedef size_t (*sheaf_source_fn)(void *context, void *buffer, size_t size);

/**
 * Receives the progress of a long operation: its phase (`SHEAF_PHASE_*`), and the bytes or pairs
 * done and in total. Returns 0 to continue; any other number cancels the operation, which then
 * returns `SHEAF_CANCELLED`. Runs in the thread of the call.
 */
typedef int32_t (*sheaf_progress_fn)(void *context, int32_t phase, uint64_t done, uint64_t total);

/**
 * Receives a corruption that a verification found. The error is valid until the callback returns
 * and must not be freed. Runs in the thread of the call.
 */
typedef void (*sheaf_finding_fn)(void *context, sheaf_error *error);

/**
 * Receives a wait of a writer: its kind (`throttle`, `memory`, `space`, `segment`, `conversion` or
 * `sync`), the keyspace (empty if there is none), and its duration in nanoseconds. Runs in the
 * thread that waited; several threads may call it at the same time.
 */
typedef void (*sheaf_stall_fn)(void *context,
                               sheaf_bytes kind,
                               sheaf_bytes keyspace,
                               uint64_t nanoseconds);

/**
 * Is called once when the library no longer uses `context`. May run in any thread.
 */
typedef void (*sheaf_release_fn)(void *context);

/**
 * Memory of the caller that a function writes to.
 */
typedef struct {
  /**
   * First byte; may be NULL if `size` is 0.
   */
  void *data;
  /**
   * Number of bytes that fit.
   */
  size_t size;
} sheaf_buffer;

/**
 * Receives a value without a copy. The bytes are valid until the callback returns. The callback
 * must not write to the database. Runs in the thread of the call.
 */
typedef void (*sheaf_read_fn)(void *context, sheaf_bytes value);

/**
 * Decides the new value of a key, which has the value `old` (NULL if the key does not exist).
 * Appends the new value to `new_value` with `sheaf_new_value_append`, and returns one of
 * `SHEAF_CHANGE_*`; any other number is an error. May be called again if another thread changes
 * the key. Runs in the thread of the call.
 */
typedef int32_t (*sheaf_change_fn)(void *context,
                                   const sheaf_bytes *old,
                                   sheaf_new_value *new_value);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Adds an operation that sets `key` to `value` in `keyspace`. The batch copies both. The last
 * operation on a key wins.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_insert(sheaf_batch *batch,
                              sheaf_keyspace *keyspace,
                              sheaf_bytes key,
                              sheaf_bytes value,
                              sheaf_error **error);

/**
 * Adds an operation that merges `operand` into the value of `key`, which earlier operations of the
 * batch may have set. If the operator refuses it, the commit fails and writes nothing.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_merge(sheaf_batch *batch,
                             sheaf_keyspace *keyspace,
                             sheaf_bytes key,
                             sheaf_bytes operand,
                             sheaf_error **error);

/**
 * Adds an operation that removes `key` from `keyspace`. A missing key is no error.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_remove(sheaf_batch *batch,
                              sheaf_keyspace *keyspace,
                              sheaf_bytes key,
                              sheaf_error **error);

/**
 * Adds an operation that removes the keys from `start` (included; NULL: the first key) to `end`
 * (excluded; NULL: all following keys). It also removes the keys that earlier operations of the
 * batch have set; later operations take effect after it. Needs an ordered engine, unless both are
 * NULL.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_remove_range(sheaf_batch *batch,
                                    sheaf_keyspace *keyspace,
                                    const sheaf_bytes *start,
                                    const sheaf_bytes *end,
                                    sheaf_error **error);

/**
 * Adds an expectation: the commit succeeds only if `key` has the value `expected` at that moment;
 * NULL means that the key does not exist. Otherwise the commit returns `SHEAF_CONFLICT` and writes
 * nothing.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_expect(sheaf_batch *batch,
                              sheaf_keyspace *keyspace,
                              sheaf_bytes key,
                              const sheaf_bytes *expected,
                              sheaf_error **error);

/**
 * Sets the durability of the commit: `SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_set_durability(sheaf_batch *batch,
                                      int32_t durability,
                                      sheaf_error **error);

/**
 * Removes all operations and expectations. The durability stays.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_clear(sheaf_batch *batch, sheaf_error **error);

/**
 * Moves all operations and expectations of `other` to the end of `batch`.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_append(sheaf_batch *batch,
                              sheaf_batch *other,
                              sheaf_error **error);

/**
 * Writes the number of operations to `count`. Expectations do not count.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_len(sheaf_batch *batch, size_t *count, sheaf_error **error);

/**
 * Commits, and waits for the durability of the batch. The batch is empty afterwards, also after an
 * error, and may be filled again; its durability is the default again.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_commit(sheaf_batch *batch, sheaf_error **error);

/**
 * Commits like `sheaf_batch_commit`, but without waiting for the device. On return the batch is
 * visible; the ticket waits for its durability.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_submit(sheaf_batch *batch, sheaf_ticket **ticket, sheaf_error **error);

/**
 * Commits like `sheaf_batch_commit`, but returns `SHEAF_BUSY` if the commit would have to wait for
 * background work. After an error the batch is unchanged and may be tried again.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_try_commit(sheaf_batch *batch, sheaf_error **error);

/**
 * Commits like `sheaf_batch_submit`, but returns `SHEAF_BUSY` if the commit would have to wait for
 * background work. After an error the batch is unchanged and may be tried again.
 *
 * Threads: one at a time for each batch.
 */
sheaf_code sheaf_batch_try_submit(sheaf_batch *batch,
                                  sheaf_ticket **ticket,
                                  sheaf_error **error);

/**
 * Frees a batch without a commit. NULL is allowed.
 *
 * Threads: any. No other call may use the batch.
 */
void sheaf_batch_free(sheaf_batch *batch);

/**
 * Returns the number of the commit; 0 if `ticket` is NULL.
 *
 * Threads: any, also at the same time.
 */
uint64_t sheaf_ticket_seq(sheaf_ticket *ticket);

/**
 * Returns true if the commit survives a power failure; false if `ticket` is NULL.
 *
 * Threads: any, also at the same time.
 */
bool sheaf_ticket_is_durable(sheaf_ticket *ticket);

/**
 * Waits for the durability that the commit was submitted with.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_ticket_wait(sheaf_ticket *ticket, sheaf_error **error);

/**
 * Waits until the commit and all commits before it are on the device.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_ticket_wait_durable(sheaf_ticket *ticket, sheaf_error **error);

/**
 * Frees a ticket. The commit becomes durable in the background. NULL is allowed.
 *
 * Threads: any. No other call may use the ticket.
 */
void sheaf_ticket_free(sheaf_ticket *ticket);

/**
 * Appends bytes to the new value of a key. The library copies them.
 *
 * Threads: only that of the callback which received `new_value`, and only until it returns.
 */
sheaf_code sheaf_new_value_append(sheaf_new_value *new_value, sheaf_bytes bytes);

/**
 * Returns the code of an error; `SHEAF_OK` if `error` is NULL.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_error_code(sheaf_error *error);

/**
 * Returns the message of an error as UTF-8 with a NUL byte at its end; an empty text if `error` is
 * NULL. Writes the number of bytes before the NUL byte to `size`, unless that is NULL. The text is
 * valid until the error is freed.
 *
 * Threads: any, also at the same time.
 */
const char *sheaf_error_message(sheaf_error *error, size_t *size);

/**
 * Returns true and writes the text of a field (`SHEAF_FIELD_*`, 1 to 31), or returns false if the
 * error does not have this field. The text is valid until the error is freed; a path may have any
 * bytes.
 *
 * Threads: any, also at the same time.
 */
bool sheaf_error_text(sheaf_error *error, int32_t field, sheaf_bytes *text);

/**
 * Returns true and writes the number of a field (`SHEAF_FIELD_*`, from 32 on), or returns false if
 * the error does not have this field.
 *
 * Threads: any, also at the same time.
 */
bool sheaf_error_number(sheaf_error *error, int32_t field, uint64_t *number);

/**
 * Frees an error. NULL is allowed.
 *
 * Threads: any. No other call may use the error.
 */
void sheaf_error_free(sheaf_error *error);

/**
 * Returns the bytes of a value; an empty range if `value` is NULL. They are valid until the value
 * is freed.
 *
 * Threads: any, also at the same time.
 */
sheaf_bytes sheaf_value_bytes(sheaf_value *value);

/**
 * Frees a value. NULL is allowed.
 *
 * Threads: any. No other call may use the value.
 */
void sheaf_value_free(sheaf_value *value);

/**
 * Creates options of a bulk load. An empty `engine` selects the engine of an existing keyspace,
 * and `flex` for a new one. `mode` is one of `SHEAF_LOAD_*` and decides about the pairs of an
 * existing keyspace.
 *
 * Threads: any.
 */
sheaf_code sheaf_loader_options_create(sheaf_bytes engine,
                                       int32_t mode,
                                       sheaf_loader_options **options,
                                       sheaf_error **error);

/**
 * Sets an option of the engine.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_loader_options_set(sheaf_loader_options *options,
                                    sheaf_bytes name,
                                    uint64_t value,
                                    sheaf_error **error);

/**
 * Frees options of a bulk load. NULL is allowed.
 *
 * Threads: any. No other call may use the options.
 */
void sheaf_loader_options_free(sheaf_loader_options *options);

/**
 * Begins a bulk load of the keyspace `name` with pairs in ascending key order. `options` may be
 * NULL; the keyspace must then be empty or not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_bulk_load(sheaf_db *db,
                              sheaf_bytes name,
                              sheaf_loader_options *options,
                              sheaf_loader **loader,
                              sheaf_error **error);

/**
 * Adds the next pair. Returns `SHEAF_INVALID_ARGUMENT` if the key is not above the previous one;
 * the load can continue after that, and after `SHEAF_TOO_LARGE`.
 *
 * Threads: one at a time for each loader; any thread.
 */
sheaf_code sheaf_loader_push(sheaf_loader *loader,
                             sheaf_bytes key,
                             sheaf_bytes value,
                             sheaf_error **error);

/**
 * Adds the next pair like `sheaf_loader_push`. It expires at `expires_at_ms`, in milliseconds
 * since 1970; 0 means never. The options of the load must set `expiry` to 1.
 *
 * Threads: one at a time for each loader; any thread.
 */
sheaf_code sheaf_loader_push_with_expiry(sheaf_loader *loader,
                                         sheaf_bytes key,
                                         sheaf_bytes value,
                                         uint64_t expires_at_ms,
                                         sheaf_error **error);

/**
 * Adds the next pair with the value that `source` returns in parts, and writes its size to
 * `value_size` (may be NULL). After an error of `source` the call returns `SHEAF_CANCELLED`, and
 * the loader must be freed.
 *
 * Threads: one at a time for each loader; any thread.
 */
sheaf_code sheaf_loader_push_source(sheaf_loader *loader,
                                    sheaf_bytes key,
                                    sheaf_source_fn source,
                                    void *context,
                                    uint64_t *value_size,
                                    sheaf_error **error);

/**
 * Returns the counts of the pairs added so far as a JSON object with `pairs`, `bytes` and
 * `is_direct`.
 *
 * Threads: one at a time for each loader; any thread.
 */
sheaf_code sheaf_loader_progress(sheaf_loader *loader,
                                 sheaf_value **report,
                                 sheaf_error **error);

/**
 * Publishes the pairs as the keyspace, atomically and durably. `report` receives a JSON object
 * like that of `sheaf_loader_progress`, unless it is NULL. The loader accepts no more calls
 * afterwards and must be freed.
 *
 * With `SHEAF_LOAD_KEEP` the call copies all pairs of the keyspace, which can be used meanwhile.
 * `progress` with `context`, unless NULL, receives the number of copied pairs and may cancel.
 *
 * Threads: one at a time for each loader; any thread.
 */
sheaf_code sheaf_loader_finish(sheaf_loader *loader,
                               sheaf_progress_fn progress,
                               void *context,
                               sheaf_value **report,
                               sheaf_error **error);

/**
 * Frees a loader. Without an end its pairs are discarded. NULL is allowed.
 *
 * Threads: any. No other call may use the loader.
 */
void sheaf_loader_free(sheaf_loader *loader);

/**
 * Returns the position before the oldest change that is retained, as a text. Returns
 * `SHEAF_INVALID_ARGUMENT` if the database retains no changes.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_oldest_change(sheaf_db *db, sheaf_value **position, sheaf_error **error);

/**
 * Returns the position after the newest commit, as a text. Waits until that commit is on the
 * device. Returns `SHEAF_INVALID_ARGUMENT` if the database retains no changes.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_newest_change(sheaf_db *db, sheaf_value **position, sheaf_error **error);

/**
 * Returns the position after the newest commit that the snapshot shows, as a text. Copy the
 * snapshot, and read the changes after this position, without a gap.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_snapshot_change_position(sheaf_snapshot *snapshot,
                                          sheaf_value **position,
                                          sheaf_error **error);

/**
 * Creates a feed of the changes of all commits after `position`, over all keyspaces and engines.
 * The database must retain changes (`sheaf_options_set_retain_changes`). Returns
 * `SHEAF_CHANGES_TOO_OLD` if the changes after `position` are no longer retained.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_changes(sheaf_db *db,
                            sheaf_bytes position,
                            sheaf_changes **changes,
                            sheaf_error **error);

/**
 * Delivers only changes of the keyspace `name`, and of those of further calls.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_add_keyspace(sheaf_changes *changes,
                                      sheaf_bytes name,
                                      sheaf_error **error);

/**
 * Delivers only changes of keys that start with `prefix`, and with those of further calls. Changes
 * of ranges and of whole keyspaces are delivered nevertheless.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_add_prefix(sheaf_changes *changes,
                                    sheaf_bytes prefix,
                                    sheaf_error **error);

/**
 * Delivers commits as soon as they are visible, and not only when they are on the device. After a
 * power failure the database may lack a commit that was delivered.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_include_unsynced(sheaf_changes *changes, sheaf_error **error);

/**
 * Moves to the next commit, and writes the number of its changes to `count`, unless that is NULL.
 * Waits up to `timeout_ms` milliseconds; `UINT64_MAX` sets no limit. Returns `SHEAF_NOT_FOUND` if
 * there is no commit within this time, and `SHEAF_CHANGES_TOO_OLD` if the consumer was too slow.
 *
 * Threads: one at a time for each feed. `sheaf_db_close` in another thread ends the wait.
 */
sheaf_code sheaf_changes_next_commit(sheaf_changes *changes,
                                     uint64_t timeout_ms,
                                     size_t *count,
                                     sheaf_error **error);

/**
 * Moves to the next change of the commit. Writes its kind (`SHEAF_CHANGE_KIND_*`), its keyspace,
 * its key and its end (each may be NULL). The key of a removed range is its first key, and `end`
 * is the key after it, or has NULL as its data if the range has no end. A change of a whole
 * keyspace has no key; the end of a rename is the new name. The bytes are valid until the next
 * call of `sheaf_changes_next_commit`.
 * Returns `SHEAF_NOT_FOUND` after the last change of the commit.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_next_change(sheaf_changes *changes,
                                     int32_t *kind,
                                     sheaf_bytes *keyspace,
                                     sheaf_bytes *key,
                                     sheaf_bytes *end,
                                     sheaf_error **error);

/**
 * Returns the value of the current change, which must be `SHEAF_CHANGE_KIND_PUT`. Reads a large
 * value from its file. Writes the milliseconds since 1970 at which the pair expires to
 * `expires_at_ms`, unless that is NULL; 0 if it does not expire. Returns `SHEAF_CHANGES_TOO_OLD`
 * if the value is no longer retained.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_value(sheaf_changes *changes,
                               sheaf_value **value,
                               uint64_t *expires_at_ms,
                               sheaf_error **error);

/**
 * Returns the engine and the options of the current change as a JSON object with `engine` and
 * `options`. It must be `SHEAF_CHANGE_KIND_CREATED`, `SHEAF_CHANGE_KIND_LOADED` or
 * `SHEAF_CHANGE_KIND_CONVERTED`.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_engine(sheaf_changes *changes,
                                sheaf_value **description,
                                sheaf_error **error);

/**
 * Returns the position after the commits that were delivered or filtered out, as a text.
 * `sheaf_db_changes` continues there.
 *
 * Threads: one at a time for each feed.
 */
sheaf_code sheaf_changes_position(sheaf_changes *changes,
                                  sheaf_value **position,
                                  sheaf_error **error);

/**
 * Frees a feed. NULL is allowed.
 *
 * Threads: any. No other call may use the feed.
 */
void sheaf_changes_free(sheaf_changes *changes);

/**
 * Opens the named cursor `name` (UTF-8, 1 to 255 bytes); creates it durably, before the oldest
 * change that is retained, if it does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_change_cursor(sheaf_db *db,
                                  sheaf_bytes name,
                                  sheaf_change_cursor **cursor,
                                  sheaf_error **error);

/**
 * Returns the named cursors as a JSON array of objects with `name`, `position` and `commit`,
 * sorted by name.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_change_cursors(sheaf_db *db, sheaf_value **cursors, sheaf_error **error);

/**
 * Removes the named cursor `name` durably. Returns `SHEAF_NOT_FOUND` if it does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_remove_change_cursor(sheaf_db *db, sheaf_bytes name, sheaf_error **error);

/**
 * Returns the position that was committed last, as a text.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_change_cursor_position(sheaf_change_cursor *cursor,
                                        sheaf_value **position,
                                        sheaf_error **error);

/**
 * Creates a feed of the changes after the position of the cursor, like `sheaf_db_changes`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_change_cursor_changes(sheaf_change_cursor *cursor,
                                       sheaf_changes **changes,
                                       sheaf_error **error);

/**
 * Moves the cursor to `position`, durably. Costs a write and a sync, so a consumer should commit
 * after many changes and not after each.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_change_cursor_commit(sheaf_change_cursor *cursor,
                                      sheaf_bytes position,
                                      sheaf_error **error);

/**
 * Frees the handle of a cursor. The cursor stays in the database. NULL is allowed.
 *
 * Threads: any. No other call may use the handle.
 */
void sheaf_change_cursor_free(sheaf_change_cursor *cursor);

/**
 * Opens the database in the directory `path` (any bytes except NUL). Creates it unless the options
 * forbid that. `options` may be NULL for the defaults. The database must be freed with
 * `sheaf_db_free`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_open(sheaf_bytes path,
                      sheaf_options *options,
                      sheaf_db **db,
                      sheaf_error **error);

/**
 * Opens the database like `sheaf_open`, or connects to the process that has it open. Writes a
 * handle to `db` or to `owner`, and NULL to the other.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_open_or_connect(sheaf_bytes path,
                                 sheaf_options *options,
                                 sheaf_db **db,
                                 sheaf_owner **owner,
                                 sheaf_error **error);

/**
 * Makes all commits durable, writes a checkpoint, and closes the database. All handles of the
 * database stay allocated: their calls return `SHEAF_CLOSED`, and they must still be freed. The
 * database is closed even if the call returns an error. A second call returns `SHEAF_CLOSED`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_close(sheaf_db *db, sheaf_error **error);

/**
 * Frees the handle. The database closes when its last handle is freed: keyspaces, snapshots,
 * iterators, batches, tickets, streams and loaders are handles too. Errors of this closing are
 * lost; `sheaf_db_close` returns them. NULL is allowed.
 *
 * Threads: any. No other call may use this handle.
 */
void sheaf_db_free(sheaf_db *db);

/**
 * Returns the directory of the database.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_path(sheaf_db *db, sheaf_value **path, sheaf_error **error);

/**
 * Opens the keyspace `name` (UTF-8, 1 to 255 bytes); creates it durably if it does not exist.
 * `options` may be NULL. An existing keyspace must match the options that are set.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_keyspace(sheaf_db *db,
                             sheaf_bytes name,
                             sheaf_keyspace_options *options,
                             sheaf_keyspace **keyspace,
                             sheaf_error **error);

/**
 * Creates the keyspace `name` durably. Returns `SHEAF_KEYSPACE_EXISTS` if there is one.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_create_keyspace(sheaf_db *db,
                                    sheaf_bytes name,
                                    sheaf_keyspace_options *options,
                                    sheaf_keyspace **keyspace,
                                    sheaf_error **error);

/**
 * Opens the keyspace `name`. Returns `SHEAF_NOT_FOUND` if it does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_open_keyspace(sheaf_db *db,
                                  sheaf_bytes name,
                                  sheaf_keyspace **keyspace,
                                  sheaf_error **error);

/**
 * Drops the keyspace `name` durably. Returns `SHEAF_NOT_FOUND` if it does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_drop_keyspace(sheaf_db *db, sheaf_bytes name, sheaf_error **error);

/**
 * Returns the keyspaces as a JSON array of objects with `name`, `engine`, `options` and `damage`,
 * sorted by name.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_keyspaces(sheaf_db *db, sheaf_value **keyspaces, sheaf_error **error);

/**
 * Creates an empty batch for any keyspaces of the database.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_batch(sheaf_db *db, sheaf_batch **batch, sheaf_error **error);

/**
 * Creates a snapshot of all keyspaces as of now. Reads nothing.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_snapshot(sheaf_db *db, sheaf_snapshot **snapshot, sheaf_error **error);

/**
 * Waits until all commits that were acknowledged before the call are on the device.
 *
 * Threads: any, also at the same time; concurrent calls share a sync.
 */
sheaf_code sheaf_db_persist(sheaf_db *db, sheaf_error **error);

/**
 * Returns the number of the newest commit over all keyspaces; 0 before the first one, and if `db`
 * is NULL.
 *
 * Threads: any, also at the same time.
 */
uint64_t sheaf_db_seq(sheaf_db *db);

/**
 * Waits until no background work is due. The calling thread takes part in the work.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_quiesce(sheaf_db *db, sheaf_error **error);

/**
 * Estimates the number of pairs with keys from `start` (included; NULL: the first key) to `end`
 * (excluded; NULL: all following keys), and the bytes of their keys and values as they are stored.
 * `pairs` and `bytes` may be NULL. The cost does not grow with the range. A range of at most about
 * 250 pairs is counted; otherwise the number is usually off by less than a quarter. Needs an
 * ordered engine, unless `start` and `end` are NULL. Not for keyspaces of snapshots
 * (`SHEAF_READ_ONLY`): engines estimate the newest state.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_estimate_range(sheaf_keyspace *keyspace,
                                const sheaf_bytes *start,
                                const sheaf_bytes *end,
                                uint64_t *pairs,
                                uint64_t *bytes,
                                sheaf_error **error);

/**
 * Estimates the number and size of the pairs with keys that start with `prefix`, like
 * `sheaf_estimate_range`. Needs an ordered engine, unless the prefix is empty.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_estimate_prefix(sheaf_keyspace *keyspace,
                                 sheaf_bytes prefix,
                                 uint64_t *pairs,
                                 uint64_t *bytes,
                                 sheaf_error **error);

/**
 * Creates an iterator over the pairs with keys from `start` (included; NULL: the first key) to
 * `end` (excluded; NULL: all following keys), in key order. It shows the state at the call. Needs
 * an ordered engine, unless both are NULL; an unordered engine returns the pairs in any order.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_range(sheaf_keyspace *keyspace,
                       const sheaf_bytes *start,
                       const sheaf_bytes *end,
                       sheaf_iter **iter,
                       sheaf_error **error);

/**
 * Creates an iterator over the pairs with keys that start with `prefix`, like `sheaf_range`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_prefix(sheaf_keyspace *keyspace,
                        sheaf_bytes prefix,
                        sheaf_iter **iter,
                        sheaf_error **error);

/**
 * Creates an iterator over all keys. Its values are empty, and it cannot seek. Does not read
 * values that the engine stores apart from the keys.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keys(sheaf_keyspace *keyspace, sheaf_iter **iter, sheaf_error **error);

/**
 * Moves to the next pair and writes it to `key` and `value` (each may be NULL). The bytes are
 * valid until the next call with this iterator. Returns `SHEAF_NOT_FOUND` at the end. After
 * `SHEAF_CORRUPT` the next call continues after the damage; after any other error the iterator
 * ends.
 *
 * Threads: one at a time for each iterator; any thread.
 */
sheaf_code sheaf_iter_next(sheaf_iter *iter,
                           sheaf_bytes *key,
                           sheaf_bytes *value,
                           sheaf_error **error);

/**
 * Moves to the next pair from the end, in descending key order. Otherwise like `sheaf_iter_next`.
 * Both ends may be used; each pair is returned once. Needs an ordered engine.
 *
 * Threads: one at a time for each iterator; any thread.
 */
sheaf_code sheaf_iter_next_back(sheaf_iter *iter,
                                sheaf_bytes *key,
                                sheaf_bytes *value,
                                sheaf_error **error);

/**
 * Moves the front to the first key at or above `key`, within the range of the iterator. Pairs that
 * were taken from the back are not returned again. Needs an ordered engine.
 *
 * Threads: one at a time for each iterator; any thread.
 */
sheaf_code sheaf_iter_seek(sheaf_iter *iter, sheaf_bytes key, sheaf_error **error);

/**
 * Moves the back to the last key at or below `key`, within the range of the iterator. Otherwise
 * like `sheaf_iter_seek`.
 *
 * Threads: one at a time for each iterator; any thread.
 */
sheaf_code sheaf_iter_seek_back(sheaf_iter *iter, sheaf_bytes key, sheaf_error **error);

/**
 * Frees an iterator. Disk space of data that was overwritten since its creation is reclaimed after
 * that. NULL is allowed.
 *
 * Threads: any. No other call may use the iterator.
 */
void sheaf_iter_free(sheaf_iter *iter);

/**
 * Frees a keyspace handle. Iterators, streams and batches that use the keyspace stay usable. NULL
 * is allowed.
 *
 * Threads: any. No other call may use this handle.
 */
void sheaf_keyspace_free(sheaf_keyspace *keyspace);

/**
 * Returns the name of the keyspace. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_name(sheaf_keyspace *keyspace,
                               sheaf_value **name,
                               sheaf_error **error);

/**
 * Gives the keyspace another name, durably. Returns `SHEAF_KEYSPACE_EXISTS` if there is a keyspace
 * with this name. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_rename(sheaf_keyspace *keyspace,
                                 sheaf_bytes name,
                                 sheaf_error **error);

/**
 * Returns the properties of the keyspace as a JSON object: `name`, `engine`, `options` (those that
 * differ from the defaults) and `ordered`. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_properties(sheaf_keyspace *keyspace,
                                     sheaf_value **properties,
                                     sheaf_error **error);

/**
 * Returns the statistics of the keyspace as a JSON object: `keys`, `index_bytes`,
 * `pinned_versions`, `encoded_raw_bytes`, `encoded_bytes`, `disk_bytes`, `counters` and
 * `workload`. Some engines count all keys. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_stats(sheaf_keyspace *keyspace,
                                sheaf_value **stats,
                                sheaf_error **error);

/**
 * Sets the workload statistics of the keyspace to zero.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_reset_workload(sheaf_keyspace *keyspace, sheaf_error **error);

/**
 * Runs all maintenance that frees disk space or speeds up reads, in the calling thread. Writes a
 * report as a JSON object to `report`, unless that is NULL: `rewritten_pairs`, `rewritten_bytes`
 * and `skipped_pairs`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_keyspace_compact(sheaf_keyspace *keyspace,
                                  sheaf_value **report,
                                  sheaf_error **error);

/**
 * Creates options for keyspaces of the engine `engine`, for example `flex`. An empty name selects
 * the engine of an existing keyspace, and `flex` for a new one. `sheaf_engines` lists the engines
 * with their options.
 *
 * Threads: any.
 */
sheaf_code sheaf_keyspace_options_create(sheaf_bytes engine,
                                         sheaf_keyspace_options **options,
                                         sheaf_error **error);

/**
 * Sets an option of the engine. The creation of the keyspace checks the name and the value.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_keyspace_options_set(sheaf_keyspace_options *options,
                                      sheaf_bytes name,
                                      uint64_t value,
                                      sheaf_error **error);

/**
 * Sets the merge operator of a new keyspace: `add`, `append`, `max`, `min`, `or` or `union`. The
 * creation of the keyspace checks the name.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_keyspace_options_set_merge_operator(sheaf_keyspace_options *options,
                                                     sheaf_bytes name,
                                                     sheaf_error **error);

/**
 * Frees options of keyspaces. NULL is allowed.
 *
 * Threads: any. No other call may use the options.
 */
void sheaf_keyspace_options_free(sheaf_keyspace_options *options);

/**
 * Copies the database, as of one moment during the call, to the directory `dir`, which must be
 * empty or is created. Reads and writes continue.
 *
 * - `base`: directory of an older backup, or NULL. Unchanged files are linked to it.
 * - `verify`: true reads the copy back and verifies it.
 * - `bytes_per_second`: 0 lets commits go first; `UINT64_MAX` sets no limit.
 * - `progress`, `context`: callback, or NULL; it may cancel.
 * - `report`: receives a JSON object with `seq`, `files`, `copied_bytes` and `linked_bytes`,
 *   unless it is NULL.
 *
 * After an error the backup is removed.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_backup(sheaf_db *db,
                           sheaf_bytes dir,
                           const sheaf_bytes *base,
                           bool verify,
                           uint64_t bytes_per_second,
                           sheaf_progress_fn progress,
                           void *context,
                           sheaf_value **report,
                           sheaf_error **error);

/**
 * Restores the backup in the directory `from` to a new database in the directory `to`, which must
 * be empty or is created, and verifies every byte. Only the permissions of `options` (may be NULL)
 * are used. `report` receives a JSON object like that of `sheaf_db_backup`, unless it is NULL.
 * After an error nothing stays in `to`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_restore(sheaf_bytes from,
                         sheaf_bytes to,
                         sheaf_options *options,
                         sheaf_progress_fn progress,
                         void *context,
                         sheaf_value **report,
                         sheaf_error **error);

/**
 * Salvages the damaged database in the directory `from` into a new database in the directory
 * `to`, which must be empty or is created. The damaged database is only read. `keep_doubtful` also
 * copies intact pairs that a damaged part may have superseded. The memory budget, the wait and the
 * permissions of `options` (may be NULL) are used. `report` receives a JSON object with the counts
 * of each keyspace and the damaged files, unless it is NULL; `is_complete` is true if nothing is
 * lost.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_repair(sheaf_bytes from,
                        sheaf_bytes to,
                        sheaf_options *options,
                        bool keep_doubtful,
                        sheaf_progress_fn progress,
                        void *context,
                        sheaf_value **report,
                        sheaf_error **error);

/**
 * Returns the statistics of the database as a JSON object. Reads no data.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_stats(sheaf_db *db, sheaf_value **stats, sheaf_error **error);

/**
 * Returns the statistics of the database as a JSON object, with those of each keyspace in
 * `keyspaces`. Counts the keys of each keyspace.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_overview(sheaf_db *db, sheaf_value **overview, sheaf_error **error);

/**
 * Reads all data, verifies every checksum, and calls `finding` (may be NULL) for each corruption.
 * Corruptions are no error of the call: `report` receives a JSON object with `pairs`, `frames`,
 * `bytes`, `findings` and `files`, unless it is NULL.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_verify(sheaf_db *db,
                           sheaf_finding_fn finding,
                           void *context,
                           sheaf_value **report,
                           sheaf_error **error);

/**
 * Converts the keyspace `name` to the engine and the options in `to`. Reads and writes continue,
 * and existing handles use the new engine afterwards. The progress counts pairs; a cancelled
 * conversion returns `SHEAF_CANCELLED` and changes nothing. `report` receives a JSON object with
 * `copied_pairs`, `bytes`, `passes` and `is_direct`, unless it is NULL.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_convert(sheaf_db *db,
                            sheaf_bytes name,
                            sheaf_keyspace_options *to,
                            sheaf_progress_fn progress,
                            void *context,
                            sheaf_value **report,
                            sheaf_error **error);

/**
 * Estimates the size of the keyspace `name` and the disk space of its conversion, as a JSON object
 * with `pairs`, `data_bytes`, `required_bytes` and `free_bytes`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_estimate_conversion(sheaf_db *db,
                                        sheaf_bytes name,
                                        sheaf_value **estimate,
                                        sheaf_error **error);

/**
 * Returns the built-in engines as a JSON array of objects with `name` and `options`. Each option
 * has `name`, `min`, `max`, `default` and `help`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_engines(sheaf_value **engines, sheaf_error **error);

/**
 * Returns the version of the library as UTF-8 with a NUL byte at its end. It is valid forever.
 *
 * Threads: any, also at the same time.
 */
const char *sheaf_version(void);

/**
 * Creates options with the defaults. They may be used for several openings, and freed after them.
 *
 * Threads: any.
 */
sheaf_code sheaf_options_create(sheaf_options **options, sheaf_error **error);

/**
 * Frees options. NULL is allowed.
 *
 * Threads: any. No other call may use the options.
 */
void sheaf_options_free(sheaf_options *options);

/**
 * Sets whether a missing database is created. Default: true. Otherwise opening it returns
 * `SHEAF_DATABASE_NOT_FOUND`.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_create(sheaf_options *options, bool create);

/**
 * Sets whether the database is opened for reading only. Default: false. If another process has the
 * database open for writing, the reader attaches to it and sees a fixed snapshot.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_read_only(sheaf_options *options, bool read_only);

/**
 * Sets whether other processes may attach through a Unix socket in the directory of the database.
 * Default: true.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_ipc(sheaf_options *options, bool ipc);

/**
 * Sets the time in milliseconds that an opening waits for another process that has the database
 * open. Default: 0.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_wait(sheaf_options *options, uint64_t milliseconds);

/**
 * Sets the memory budget in bytes for indexes, buffers, old versions and caches. Default: 1 GiB.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_memory(sheaf_options *options, uint64_t bytes);

/**
 * Sets the modes of new files and directories, for example 0640 and 0750. Default: 0600 and 0700.
 * Opening checks the modes.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_permissions(sheaf_options *options,
                                         uint32_t file_mode,
                                         uint32_t directory_mode);

/**
 * Sets the number of file descriptors that the database may use; numbers below 16 count as 16.
 * Default: a quarter of the limit of the process, at most 1,024.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_open_files(sheaf_options *options, uint32_t descriptors);

/**
 * Sets whether the files are in persistent memory: one of `SHEAF_PERSISTENT_MEMORY_*`.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_persistent_memory(sheaf_options *options, int32_t mode);

/**
 * Sets the default durability of commits: `SHEAF_DURABILITY_BUFFER` (default) or
 * `SHEAF_DURABILITY_SYNC`.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_durability(sheaf_options *options, int32_t durability);

/**
 * Sets the target for the longest time in milliseconds that a buffered commit stays unsynced.
 * Default: 100. Opening refuses 0.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_sync_interval(sheaf_options *options, uint64_t milliseconds);

/**
 * Sets the number of threads for background work. Default: half of the cores, from 1 to 8.
 * Opening refuses 0.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_background_threads(sheaf_options *options, size_t threads);

/**
 * Sets the limit on the disk space of the store log, as a multiple of its live entries: 1.1 to 10,
 * default 1.6. Opening refuses other numbers.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_space_limit(sheaf_options *options, double times);

/**
 * Sets the changes that the database retains for `sheaf_db_changes`: for `seconds` seconds, and at
 * most `bytes` bytes of log files beyond those that the database needs itself. With
 * `until_cursors_pass`, a change also stays until all named cursors have passed it. 0 for `bytes`
 * ends the retention. The setting is stored in the database; openings without it keep it.
 *
 * Threads: one at a time for each options handle.
 */
sheaf_code sheaf_options_set_retain_changes(sheaf_options *options,
                                            uint64_t bytes,
                                            uint64_t seconds,
                                            bool until_cursors_pass);

/**
 * Sets a callback for waits of writers of at least `threshold_ms` milliseconds. `release` (may be
 * NULL) is called with `context` after the options were freed and all databases that were opened
 * with them are closed and freed with all their handles.
 *
 * Threads: one at a time for each options handle. The callbacks may run in any thread.
 */
sheaf_code sheaf_options_set_stall_callback(sheaf_options *options,
                                            sheaf_stall_fn on_stall,
                                            void *context,
                                            sheaf_release_fn release,
                                            uint64_t threshold_ms);

/**
 * Connects to the process that has the database in the directory `path` open. Returns
 * `SHEAF_NOT_FOUND` if there is none.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_owner_connect(sheaf_bytes path, sheaf_owner **owner, sheaf_error **error);

/**
 * Returns the statistics of the database and of each keyspace, like `sheaf_db_overview`.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_overview(sheaf_owner *owner,
                                sheaf_value **overview,
                                sheaf_error **error);

/**
 * Makes the owner back up the database, like `sheaf_db_backup`.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_backup(sheaf_owner *owner,
                              sheaf_bytes dir,
                              const sheaf_bytes *base,
                              bool verify,
                              uint64_t bytes_per_second,
                              sheaf_progress_fn progress,
                              void *context,
                              sheaf_value **report,
                              sheaf_error **error);

/**
 * Makes the owner convert the keyspace `name`, like `sheaf_db_convert`.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_convert(sheaf_owner *owner,
                               sheaf_bytes name,
                               sheaf_keyspace_options *to,
                               sheaf_progress_fn progress,
                               void *context,
                               sheaf_value **report,
                               sheaf_error **error);

/**
 * Estimates a conversion, like `sheaf_db_estimate_conversion`.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_estimate_conversion(sheaf_owner *owner,
                                           sheaf_bytes name,
                                           sheaf_value **estimate,
                                           sheaf_error **error);

/**
 * Makes the owner compact the keyspace `name` (NULL: all keyspaces), like
 * `sheaf_keyspace_compact`. The progress counts rewritten pairs.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_compact(sheaf_owner *owner,
                               const sheaf_bytes *name,
                               sheaf_progress_fn progress,
                               void *context,
                               sheaf_value **report,
                               sheaf_error **error);

/**
 * Makes the owner verify the database, like `sheaf_db_verify`.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_verify(sheaf_owner *owner,
                              sheaf_finding_fn finding,
                              void *context,
                              sheaf_value **report,
                              sheaf_error **error);

/**
 * Waits until all commits that the owner acknowledged before the call are on the device.
 *
 * Threads: one at a time for each connection; any thread.
 */
sheaf_code sheaf_owner_persist(sheaf_owner *owner, sheaf_error **error);

/**
 * Closes the connection. NULL is allowed.
 *
 * Threads: any. No other call may use the connection.
 */
void sheaf_owner_free(sheaf_owner *owner);

/**
 * Copies the value of `key` to `buffer`, and writes its size to `value_size` (may be NULL).
 * Returns `SHEAF_NOT_FOUND` if the key does not exist, and `SHEAF_BUFFER_TOO_SMALL` if the value
 * does not fit; `value_size` then has the needed size, and nothing is copied. A missing key has
 * size 0. This is the fastest read.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_get_into(sheaf_keyspace *keyspace,
                          sheaf_bytes key,
                          sheaf_buffer buffer,
                          size_t *value_size,
                          sheaf_error **error);

/**
 * Returns the value of `key`. Returns `SHEAF_NOT_FOUND` if the key does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_get(sheaf_keyspace *keyspace,
                     sheaf_bytes key,
                     sheaf_value **value,
                     sheaf_error **error);

/**
 * Calls `read` with the value of `key`, without a copy if the engine has it in memory. Returns
 * `SHEAF_NOT_FOUND` without a call if the key does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_read_with(sheaf_keyspace *keyspace,
                           sheaf_bytes key,
                           sheaf_read_fn read,
                           void *context,
                           sheaf_error **error);

/**
 * Returns at most `size` bytes of the value of `key` from `offset` on. Positions after its end are
 * ignored. Does not load the rest of a large value.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_get_range(sheaf_keyspace *keyspace,
                           sheaf_bytes key,
                           uint64_t offset,
                           uint64_t size,
                           sheaf_value **value,
                           sheaf_error **error);

/**
 * Returns the values of `count` keys in `values`, an array of `count` places. A missing key has
 * the value NULL. Faster than single calls of `sheaf_get`. After an error all places are NULL.
 *
 * Threads: any, also at the same time.
 *
 * # Safety
 *
 * `keys` and `values` must be arrays of `count` elements, or NULL if `count` is 0.
 */
sheaf_code sheaf_multi_get(sheaf_keyspace *keyspace,
                           const sheaf_bytes *keys,
                           size_t count,
                           sheaf_value **values,
                           sheaf_error **error);

/**
 * Returns the size of the value of `key` in bytes. Does not read a large value. Returns
 * `SHEAF_NOT_FOUND` if the key does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_size_of(sheaf_keyspace *keyspace,
                         sheaf_bytes key,
                         uint64_t *value_size,
                         sheaf_error **error);

/**
 * Returns `SHEAF_OK` if `key` exists, and `SHEAF_NOT_FOUND` if not. Does not copy the value.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_contains_key(sheaf_keyspace *keyspace, sheaf_bytes key, sheaf_error **error);

/**
 * Returns the time at which `key` expires, in milliseconds since 1970, or 0 if it never does.
 * Returns `SHEAF_NOT_FOUND` if the key does not exist or has expired.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_expires_at(sheaf_keyspace *keyspace,
                            sheaf_bytes key,
                            uint64_t *expires_at_ms,
                            sheaf_error **error);

/**
 * Returns the path of the file that contains exactly the value of `key`. Returns
 * `SHEAF_NOT_FOUND` if the value has no file of its own. The file must not be modified. Not for
 * keyspaces of snapshots (`SHEAF_READ_ONLY`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_blob_path(sheaf_keyspace *keyspace,
                           sheaf_bytes key,
                           sheaf_value **path,
                           sheaf_error **error);

/**
 * Returns the number of keys. Engines without a counter, and snapshots, count all keys.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_len(sheaf_keyspace *keyspace, uint64_t *count, sheaf_error **error);

/**
 * Writes true to `is_empty` if there are no keys, and false otherwise. Reads at most one key.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_is_empty(sheaf_keyspace *keyspace, bool *is_empty, sheaf_error **error);

/**
 * Returns the pair with the lowest key. Returns `SHEAF_NOT_FOUND` if there are no keys. Needs an
 * ordered engine.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_first(sheaf_keyspace *keyspace,
                       sheaf_value **key,
                       sheaf_value **value,
                       sheaf_error **error);

/**
 * Returns the pair with the highest key. Returns `SHEAF_NOT_FOUND` if there are no keys. Needs an
 * ordered engine.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_last(sheaf_keyspace *keyspace,
                      sheaf_value **key,
                      sheaf_value **value,
                      sheaf_error **error);

/**
 * Returns the number of the newest commit that the snapshot shows; 0 if `snapshot` is NULL.
 *
 * Threads: any, also at the same time.
 */
uint64_t sheaf_snapshot_seq(sheaf_snapshot *snapshot);

/**
 * Returns the names of the keyspaces in the snapshot as a JSON array.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_snapshot_keyspaces(sheaf_snapshot *snapshot,
                                    sheaf_value **keyspaces,
                                    sheaf_error **error);

/**
 * Opens the keyspace `name` of the snapshot. All reading functions for keyspaces accept the
 * handle; functions that write return `SHEAF_READ_ONLY`. Returns `SHEAF_KEYSPACE_NOT_FOUND` if the
 * snapshot does not have the keyspace.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_snapshot_keyspace(sheaf_snapshot *snapshot,
                                   sheaf_bytes name,
                                   sheaf_keyspace **keyspace,
                                   sheaf_error **error);

/**
 * Frees a snapshot. Its keyspaces and iterators stay usable. NULL is allowed.
 *
 * Threads: any. No other call may use the snapshot.
 */
void sheaf_snapshot_free(sheaf_snapshot *snapshot);

/**
 * Opens a stream over the value of `key`. It does not change if the key is overwritten. Returns
 * `SHEAF_NOT_FOUND` if the key does not exist.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_reader_open(sheaf_keyspace *keyspace,
                             sheaf_bytes key,
                             sheaf_reader **reader,
                             sheaf_error **error);

/**
 * Writes the size of the value in bytes to `size`.
 *
 * Threads: one at a time for each reader; any thread.
 */
sheaf_code sheaf_reader_size(sheaf_reader *reader, uint64_t *size, sheaf_error **error);

/**
 * Reads from `offset` into `buffer` and writes the number of bytes to `read_size`. It is smaller
 * than the buffer only at the end of the value, and 0 after it. All bytes of the buffer are
 * overwritten; those after the value have no meaning.
 *
 * Threads: one at a time for each reader; any thread.
 */
sheaf_code sheaf_reader_read_at(sheaf_reader *reader,
                                uint64_t offset,
                                sheaf_buffer buffer,
                                size_t *read_size,
                                sheaf_error **error);

/**
 * Frees a reader. NULL is allowed.
 *
 * Threads: any. No other call may use the reader.
 */
void sheaf_reader_free(sheaf_reader *reader);

/**
 * Opens a stream that sets `key` to the bytes written to it, up to 4 GiB - 1.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_writer_open(sheaf_keyspace *keyspace,
                             sheaf_bytes key,
                             sheaf_writer **writer,
                             sheaf_error **error);

/**
 * Appends bytes to the value. After an error the writer accepts no more calls.
 *
 * Threads: one at a time for each writer; any thread.
 */
sheaf_code sheaf_writer_write(sheaf_writer *writer, sheaf_bytes bytes, sheaf_error **error);

/**
 * Sets the key to the bytes written, with the default durability of the database. The writer
 * accepts no more calls afterwards and must be freed.
 *
 * Threads: one at a time for each writer; any thread.
 */
sheaf_code sheaf_writer_commit(sheaf_writer *writer, sheaf_error **error);

/**
 * Sets the key to the bytes written, without waiting for the device, and returns a ticket that
 * waits for `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`). The writer
 * accepts no more calls afterwards.
 *
 * Threads: one at a time for each writer; any thread.
 */
sheaf_code sheaf_writer_submit(sheaf_writer *writer,
                               int32_t durability,
                               sheaf_ticket **ticket,
                               sheaf_error **error);

/**
 * Frees a writer. Without a commit its bytes are discarded. NULL is allowed.
 *
 * Threads: any. No other call may use the writer.
 */
void sheaf_writer_free(sheaf_writer *writer);

/**
 * Begins a transaction: its reads show the state at this call, and its own changes. The commit
 * returns `SHEAF_CONFLICT` if another commit changed a key or range that was read; then begin
 * again. A transaction holds no lock. Other threads and transactions continue.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_db_transaction(sheaf_db *db,
                                sheaf_transaction **transaction,
                                sheaf_error **error);

/**
 * Returns the number of the newest commit that the reads show; 0 if `transaction` is NULL, has
 * ended, or is in use.
 *
 * Threads: any, also at the same time.
 */
uint64_t sheaf_transaction_seq(sheaf_transaction *transaction);

/**
 * Returns the value of `key`, and `SHEAF_NOT_FOUND` if the key does not exist. The commit checks
 * that no other commit changed the key.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_get(sheaf_transaction *transaction,
                                 sheaf_keyspace *keyspace,
                                 sheaf_bytes key,
                                 sheaf_value **value,
                                 sheaf_error **error);

/**
 * Returns the value of `key` like `sheaf_transaction_get`. The commit then checks the reads of the
 * transaction even if it changes nothing.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_get_for_update(sheaf_transaction *transaction,
                                            sheaf_keyspace *keyspace,
                                            sheaf_bytes key,
                                            sheaf_value **value,
                                            sheaf_error **error);

/**
 * Returns the value of `key` like `sheaf_transaction_get`, but the commit does not check the key.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_untracked_get(sheaf_transaction *transaction,
                                           sheaf_keyspace *keyspace,
                                           sheaf_bytes key,
                                           sheaf_value **value,
                                           sheaf_error **error);

/**
 * Sets `key` to `value`. The transaction copies both.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_insert(sheaf_transaction *transaction,
                                    sheaf_keyspace *keyspace,
                                    sheaf_bytes key,
                                    sheaf_bytes value,
                                    sheaf_error **error);

/**
 * Merges `operand` into the value of `key` that the transaction sees. This is a read of the key:
 * another commit to it is a conflict. If the operator refuses the operand, returns
 * `SHEAF_INVALID_ARGUMENT`, and the transaction is unchanged.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_merge(sheaf_transaction *transaction,
                                   sheaf_keyspace *keyspace,
                                   sheaf_bytes key,
                                   sheaf_bytes operand,
                                   sheaf_error **error);

/**
 * Removes `key`. A missing key is no error.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_remove(sheaf_transaction *transaction,
                                    sheaf_keyspace *keyspace,
                                    sheaf_bytes key,
                                    sheaf_error **error);

/**
 * Removes the keys from `start` (included; NULL: the first key) to `end` (excluded; NULL: all
 * following keys). Needs an ordered engine, unless both are NULL.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_remove_range(sheaf_transaction *transaction,
                                          sheaf_keyspace *keyspace,
                                          const sheaf_bytes *start,
                                          const sheaf_bytes *end,
                                          sheaf_error **error);

/**
 * Creates an iterator over the pairs with keys from `start` (included; NULL: the first key) to
 * `end` (excluded; NULL: all following keys), with the changes of the transaction. The commit
 * checks the part that was iterated over, also for keys that did not exist. The iterator cannot
 * seek, and returns an error after the end of the transaction. Needs an ordered engine, unless
 * both are NULL.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_range(sheaf_transaction *transaction,
                                   sheaf_keyspace *keyspace,
                                   const sheaf_bytes *start,
                                   const sheaf_bytes *end,
                                   sheaf_iter **iter,
                                   sheaf_error **error);

/**
 * Creates an iterator over the pairs with keys that start with `prefix`, like
 * `sheaf_transaction_range`.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_prefix(sheaf_transaction *transaction,
                                    sheaf_keyspace *keyspace,
                                    sheaf_bytes prefix,
                                    sheaf_iter **iter,
                                    sheaf_error **error);

/**
 * Writes the number of a new savepoint to `savepoint`, for `sheaf_transaction_roll_back_to`.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_savepoint(sheaf_transaction *transaction,
                                       size_t *savepoint,
                                       sheaf_error **error);

/**
 * Undoes all changes after the savepoint. It stays valid, and later ones do not. Reads since then
 * are still checked.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_roll_back_to(sheaf_transaction *transaction,
                                          size_t savepoint,
                                          sheaf_error **error);

/**
 * Sets the durability of the commit: `SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_set_durability(sheaf_transaction *transaction,
                                            int32_t durability,
                                            sheaf_error **error);

/**
 * Commits, and waits for the durability of the transaction. Returns `SHEAF_CONFLICT` and writes
 * nothing if another commit changed a key or range that was read. The transaction has ended
 * afterwards, also after an error, and must be freed.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_commit(sheaf_transaction *transaction, sheaf_error **error);

/**
 * Commits like `sheaf_transaction_commit`, but without waiting for the device. On return the
 * commit is visible; the ticket waits for its durability.
 *
 * Threads: one at a time for each transaction.
 */
sheaf_code sheaf_transaction_submit(sheaf_transaction *transaction,
                                    sheaf_ticket **ticket,
                                    sheaf_error **error);

/**
 * Frees a transaction. Its changes are dropped if it was not committed. NULL is allowed.
 *
 * Threads: any. No other call may use the transaction.
 */
void sheaf_transaction_free(sheaf_transaction *transaction);

/**
 * Sets `key` to `value` if the key does not exist, atomically. Otherwise returns `SHEAF_CONFLICT`,
 * writes nothing, and writes the present value to `present` (may be NULL).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_insert_if_absent(sheaf_keyspace *keyspace,
                                  sheaf_bytes key,
                                  sheaf_bytes value,
                                  sheaf_value **present,
                                  sheaf_error **error);

/**
 * Replaces the value of `key` by the value that `change` decides, atomically. Writes the new value
 * to `new_value` (may be NULL); it is NULL if the key was removed. If another thread changes the
 * key in between, `change` is called again. No lock is held while it runs.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_update(sheaf_keyspace *keyspace,
                        sheaf_bytes key,
                        sheaf_change_fn change,
                        void *context,
                        sheaf_value **new_value,
                        sheaf_error **error);

/**
 * Lets the merge operator of the keyspace compute the value of `key` from its present value and
 * `operand`, atomically. Merges of one key by several threads share commits. Returns
 * `SHEAF_INVALID_ARGUMENT` and writes nothing if the operator refuses the operand, or if the
 * keyspace has no operator (`sheaf_keyspace_options_set_merge_operator`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_merge(sheaf_keyspace *keyspace,
                       sheaf_bytes key,
                       sheaf_bytes operand,
                       sheaf_error **error);

/**
 * Merges like `sheaf_merge` without waiting for the device, and returns a ticket that waits for
 * `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_submit_merge(sheaf_keyspace *keyspace,
                              sheaf_bytes key,
                              sheaf_bytes operand,
                              int32_t durability,
                              sheaf_ticket **ticket,
                              sheaf_error **error);

/**
 * Removes the pair with the lowest key and returns it. Returns `SHEAF_NOT_FOUND` if there are no
 * keys. Each pair is returned to one caller only. Needs an ordered engine. One of `key` and
 * `value` may be NULL.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_pop_first(sheaf_keyspace *keyspace,
                           sheaf_value **key,
                           sheaf_value **value,
                           sheaf_error **error);

/**
 * Removes the pair with the highest key and returns it, like `sheaf_pop_first`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_pop_last(sheaf_keyspace *keyspace,
                          sheaf_value **key,
                          sheaf_value **value,
                          sheaf_error **error);

/**
 * Sets `key` to `value` with the default durability of the database.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_insert(sheaf_keyspace *keyspace,
                        sheaf_bytes key,
                        sheaf_bytes value,
                        sheaf_error **error);

/**
 * Sets `key` to `value` for `ttl_ms` milliseconds. Afterwards the key is missing for every read.
 * The keyspace must have the option `expiry`; otherwise, and if `ttl_ms` is zero, returns
 * `SHEAF_INVALID_ARGUMENT`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_insert_with_ttl(sheaf_keyspace *keyspace,
                                 sheaf_bytes key,
                                 sheaf_bytes value,
                                 uint64_t ttl_ms,
                                 sheaf_error **error);

/**
 * Removes `key` with the default durability of the database. A missing key is no error.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_remove(sheaf_keyspace *keyspace, sheaf_bytes key, sheaf_error **error);

/**
 * Sets `key` to `value` like `sheaf_insert`, but returns `SHEAF_BUSY` if the write would have to
 * wait for background work; nothing is written then.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_try_insert(sheaf_keyspace *keyspace,
                            sheaf_bytes key,
                            sheaf_bytes value,
                            sheaf_error **error);

/**
 * Removes `key` like `sheaf_remove`, but returns `SHEAF_BUSY` if the write would have to wait for
 * background work.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_try_remove(sheaf_keyspace *keyspace, sheaf_bytes key, sheaf_error **error);

/**
 * Sets `key` to `value` without waiting for the device, and returns a ticket that waits for
 * `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`).
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_submit_insert(sheaf_keyspace *keyspace,
                               sheaf_bytes key,
                               sheaf_bytes value,
                               int32_t durability,
                               sheaf_ticket **ticket,
                               sheaf_error **error);

/**
 * Removes `key` without waiting for the device, and returns a ticket like `sheaf_submit_insert`.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_submit_remove(sheaf_keyspace *keyspace,
                               sheaf_bytes key,
                               int32_t durability,
                               sheaf_ticket **ticket,
                               sheaf_error **error);

/**
 * Removes all pairs atomically and durably. The cost does not depend on the number of keys.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_clear(sheaf_keyspace *keyspace, sheaf_error **error);

/**
 * Removes the pairs with keys from `start` (included; NULL: the first key) to `end` (excluded;
 * NULL: all following keys) in one commit. Needs an ordered engine, unless both are NULL.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_remove_range(sheaf_keyspace *keyspace,
                              const sheaf_bytes *start,
                              const sheaf_bytes *end,
                              sheaf_error **error);

/**
 * Sets `key` to `new_value` if its value is `expected`, atomically. NULL for `expected` means that
 * the key does not exist; NULL for `new_value` removes it. Returns `SHEAF_CONFLICT`, and changes
 * nothing, if the key has another value.
 *
 * Threads: any, also at the same time.
 */
sheaf_code sheaf_compare_and_swap(sheaf_keyspace *keyspace,
                                  sheaf_bytes key,
                                  const sheaf_bytes *expected,
                                  const sheaf_bytes *new_value,
                                  sheaf_error **error);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* SHEAF_H */

/** Returns the range of `size` bytes at `data`. */
SHEAF_INLINE sheaf_bytes sheaf_bytes_of(const void *data, size_t size) {
  sheaf_bytes bytes;
  bytes.data = data;
  bytes.size = size;
  return bytes;
}

/** Returns the range of a text without its NUL byte. */
SHEAF_INLINE sheaf_bytes sheaf_str(const char *text) {
  return sheaf_bytes_of(text, strlen(text));
}

/** Returns the buffer of `size` bytes at `data`. */
SHEAF_INLINE sheaf_buffer sheaf_buffer_of(void *data, size_t size) {
  sheaf_buffer buffer;
  buffer.data = data;
  buffer.size = size;
  return buffer;
}
