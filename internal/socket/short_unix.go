//go:build unix

package socket

import (
	"os"
	"path/filepath"
)

// useLink calls use with a path through a symbolic link to the socket's directory. The link
// exists only during the call, and only for this user.
func useLink(path string, use func(short string) error) error {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	way, err := os.MkdirTemp("/tmp", "atoll-") // $TMPDIR can be long
	if err != nil {
		return err
	}
	defer os.Remove(way)
	link := filepath.Join(way, "d")
	if err := os.Symlink(dir, link); err != nil {
		return err
	}
	defer os.Remove(link)
	return use(filepath.Join(link, filepath.Base(path)))
}
