//! The kill -9 loop.

use sheaf_testkit::stage::Subject;

sheaf_testkit::kill_suite!(flat, Subject::flat());
sheaf_testkit::kill_suite!(flex, Subject::flex());
sheaf_testkit::kill_suite!(ledger, Subject::ledger());
