//! Every engine keeps every promise.

use sheaf_testkit::stage::Subject;

sheaf_testkit::conformance!(flat, Subject::flat());
sheaf_testkit::conformance!(flat_ordered, Subject::flat_ordered());
sheaf_testkit::conformance!(ledger, Subject::ledger());
