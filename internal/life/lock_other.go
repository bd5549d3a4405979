//go:build !unix

package life

import "os"

// A lockFile is a mere marker on systems that have no flock: there, two
// programs must not share a directory.
type lockFile struct{ name string }

func lock(name string) (*lockFile, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	return &lockFile{name}, file.Close()
}

func (l *lockFile) unlock() {}

func (l *lockFile) remove() { _ = os.Remove(l.name) }
