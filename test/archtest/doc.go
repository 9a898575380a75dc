// Package archtest holds the repository to its own architecture: who may import
// whom, how long files are, how packages are named. Its tests read the source, all
// build constraints included, and name the rule that is broken and its reason.
package archtest
