//go:build !unix

package dirfs

import (
	"io/fs"
	"time"
)

func ownerOf(fs.FileInfo) (uid, gid int) { return 0, 0 }

// changeOf returns nothing: this system tells neither with the rest.
func changeOf(fs.FileInfo) (changed time.Time, inode uint64) { return changed, inode }

func inodeOf(fs.FileInfo) (id [2]uint64, ok bool) { return id, false }

// syncDir does nothing: this system cannot sync directories.
func syncDir(tree) error { return nil }
