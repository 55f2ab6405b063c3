// Package mutant is how a rule of the protocol is switched off outside of the package that has
// the list of such rules (chunkstore/writer, Mutants), which may not be imported everywhere. In an
// ordinary build none can be: Broken is always false, and the compiler removes the question and
// what would follow from it. In a build with the tag mutants one rule at a time can be, so that
// the simulation shows that it would notice.
//
// The package is for tests, and may change with any release.
package mutant
