//go:build !unix

package dirfs

import "io/fs"

func ownerOf(fs.FileInfo) (uid, gid int) { return 0, 0 }

func inodeOf(fs.FileInfo) (id [2]uint64, ok bool) { return id, false }

// syncDir does nothing: this system cannot sync directories.
func syncDir(tree) error { return nil }
