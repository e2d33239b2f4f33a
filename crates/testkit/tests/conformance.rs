//! Every engine keeps every promise.

use sheaf_testkit::stage::Subject;

sheaf_testkit::conformance!(flat, Subject::flat());
sheaf_testkit::conformance!(flex, Subject::flex());
sheaf_testkit::conformance!(ledger, Subject::ledger());
