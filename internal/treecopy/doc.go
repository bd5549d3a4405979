// Package treecopy copies directory trees of one machine, with all that files have.
package treecopy
