//go:build !unix

package dirfs

import "io/fs"

func owner(fs.FileInfo) (uid, gid int) { return 0, 0 }

func inode(fs.FileInfo) (id [2]uint64, ok bool) { return id, false }

// syncDir does nothing: directories cannot be synchronized here.
func syncDir(tree) error { return nil }
