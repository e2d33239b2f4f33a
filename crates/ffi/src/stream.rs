//! # Streams: values that need not fit in memory

use std::io::Write;
use std::mem::MaybeUninit;

use sheaf::{ValueReader, ValueWriter};

use crate::batch::sheaf_ticket;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_buffer, sheaf_bytes};
use crate::boundary::{self, Exclusive, Failure, call, found, given, invalid};
use crate::keyspace::{Source, readable, sheaf_keyspace, writable};
use crate::options::chosen_durability;

/// Stream that reads a value.
pub struct sheaf_reader(Exclusive<ValueReader>);

/// Opens a stream over the value of `key`. It does not change if the key is overwritten. Returns
/// `SHEAF_NOT_FOUND` if the key does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_reader_open(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    reader: Option<&mut MaybeUninit<*mut sheaf_reader>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let reader = handle_out(reader, "reader")?;
        let key = key.get("key")?;
        let opened = match readable(keyspace)? {
            Source::Live(keyspace) => keyspace.reader(key)?,
            Source::Snapshot(keyspace) => keyspace.reader(key)?,
        };
        reader.write(Box::into_raw(Box::new(sheaf_reader(Exclusive::new(found(opened)?)))));
        Ok(())
    })
}

/// Writes the size of the value in bytes to `size`.
///
/// Threads: one at a time for each reader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_reader_size(
    reader: Option<&sheaf_reader>,
    size: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let len = given(reader, "reader")?.0.lock("reader")?.len();
        given(size, "size")?.write(len);
        Ok(())
    })
}

/// Reads from `offset` into `buffer` and writes the number of bytes to `read_size`. It is smaller
/// than the buffer only at the end of the value, and 0 after it. All bytes of the buffer are
/// overwritten; those after the value have no meaning.
///
/// Threads: one at a time for each reader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_reader_read_at(
    reader: Option<&sheaf_reader>,
    offset: u64,
    mut buffer: sheaf_buffer<'_>,
    read_size: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let read_size = given(read_size, "read_size")?.write(0);
        let mut reader = given(reader, "reader")?.0.lock("reader")?;
        *read_size = reader.read_at(offset, buffer.zeroed()?)?;
        Ok(())
    })
}

/// Frees a reader. NULL is allowed.
///
/// Threads: any. No other call may use the reader.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_reader_free(reader: Option<Box<sheaf_reader>>) {
    boundary::release(reader);
}

/// Stream that creates a value. Nothing is visible before the commit.
pub struct sheaf_writer(Exclusive<Option<ValueWriter>>);

/// Opens a stream that sets `key` to the bytes written to it, up to 4 GiB - 1.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_writer_open(
    keyspace: Option<&sheaf_keyspace>,
    key: sheaf_bytes<'_>,
    writer: Option<&mut MaybeUninit<*mut sheaf_writer>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let writer = handle_out(writer, "writer")?;
        let opened = writable(keyspace)?.writer(key.get("key")?)?;
        writer.write(Box::into_raw(Box::new(sheaf_writer(Exclusive::new(Some(opened))))));
        Ok(())
    })
}

/// Appends bytes to the value. After an error the writer accepts no more calls.
///
/// Threads: one at a time for each writer; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_writer_write(
    writer: Option<&sheaf_writer>,
    bytes: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut writer = given(writer, "writer")?.0.lock("writer")?;
        let bytes = bytes.get("bytes")?;
        let written = writer.as_mut().ok_or_else(ended)?.write_all(bytes);
        if written.is_err() {
            *writer = None;
        }
        Ok(written?)
    })
}

#[cold]
fn ended() -> Failure {
    invalid("writer", "it was committed, or an earlier write failed")
}

/// Sets the key to the bytes written, with the default durability of the database. The writer
/// accepts no more calls afterwards and must be freed.
///
/// Threads: one at a time for each writer; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_writer_commit(
    writer: Option<&sheaf_writer>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut writer = given(writer, "writer")?.0.lock("writer")?;
        Ok(writer.take().ok_or_else(ended)?.commit()?)
    })
}

/// Sets the key to the bytes written, without waiting for the device, and returns a ticket that
/// waits for `durability` (`SHEAF_DURABILITY_BUFFER` or `SHEAF_DURABILITY_SYNC`). The writer
/// accepts no more calls afterwards.
///
/// Threads: one at a time for each writer; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_writer_submit(
    writer: Option<&sheaf_writer>,
    durability: i32,
    ticket: Option<&mut MaybeUninit<*mut sheaf_ticket>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let ticket = handle_out(ticket, "ticket")?;
        let durability = chosen_durability(durability)?;
        let mut writer = given(writer, "writer")?.0.lock("writer")?;
        let submitted = writer.take().ok_or_else(ended)?.submit(durability)?;
        ticket.write(sheaf_ticket::handle(submitted));
        Ok(())
    })
}

/// Frees a writer. Without a commit its bytes are discarded. NULL is allowed.
///
/// Threads: any. No other call may use the writer.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_writer_free(writer: Option<Box<sheaf_writer>>) {
    boundary::release(writer);
}
