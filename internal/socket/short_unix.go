//go:build unix

package socket

import (
	"os"
	"path/filepath"
)

// useLink reaches the socket through a link to its directory, which is there as long
// as use takes, and for this user only.
func useLink(path string, use func(short string) error) error {
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return err
	}
	way, err := os.MkdirTemp("/tmp", "atoll-") // that of the environment can be long
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
