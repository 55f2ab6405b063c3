// Package archtest keeps the shape of the module by ordinary tests: `go test ./...` alone
// says when a package imports what it must not, reads the ambient clock, takes on a
// dependency without a reason, or lacks its essay.
//
// The rules are data, each row with its reason, in the test files beside this one:
//
//	imports_test.go   which package of ours may import which
//	modules_test.go   where foreign modules may be used, and what lean packages never pull in
//	ambient_test.go   clock and randomness are handed in; who may read the real ones
//	deps.txt          one line for each direct dependency: why the standard library was not enough
//	docs_test.go      an essay for each package, a sentence for each exported name
//	lengths_test.go   lengths of files and functions, which only shrink
//	words_test.go     words of the glossary, nothing left to do, no place of one machine
//
// Every failure says file:line, what is wrong, and what to do. A change that breaks a rule
// either follows it or changes its row, reason included, in the same commit: the diff of
// the row is what gets discussed. A row that nothing needs any more fails too. Every rule is
// also run on a small source that breaks it (bite_test.go), so that a rule that no longer
// sees anything is noticed.
package archtest
