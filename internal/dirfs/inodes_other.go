//go:build !linux

package dirfs

// keepsInodes reports true: the usual file systems here never renumber their files.
func keepsInodes(tree) bool { return true }
