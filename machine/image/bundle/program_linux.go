package bundle

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// formatterPath is where the guest looks for the program that it formats disks with.
const formatterPath = "sbin/mke2fs"

// maxLibrary bounds a library that a program needs.
const maxLibrary = 32 << 20

// withLibraries returns the program at path, to be called as, and all that it takes to
// run: its loader, where it has one, and the libraries that it needs, in /lib, where
// the loader looks.
func withLibraries(path, as string) (map[string][]byte, error) {
	files := map[string][]byte{}
	add := func(name, from string) (needs []string, loader string, err error) {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", err
		}
		if len(data) > maxLibrary {
			return nil, "", damaged(nil, "%s has %d bytes", from, len(data))
		}
		files[name] = data
		f, err := elf.Open(from)
		if err != nil {
			return nil, "", damaged(err, "%s", from)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				text := make([]byte, p.Filesz)
				if _, err := p.ReadAt(text, 0); err != nil {
					return nil, "", damaged(err, "%s", from)
				}
				loader = strings.TrimRight(string(text), "\x00")
			}
		}
		needs, err = f.ImportedLibraries()
		return needs, loader, err
	}
	needs, loader, err := add(as, path)
	if err != nil || loader == "" {
		return files, err
	}
	if _, _, err := add(strings.TrimPrefix(loader, "/"), loader); err != nil {
		return nil, err
	}
	for len(needs) > 0 {
		lib := needs[0]
		needs = needs[1:]
		if files["lib/"+lib] != nil || lib == filepath.Base(loader) {
			continue
		}
		from, err := findLibrary(lib, loader)
		if err != nil {
			return nil, fmt.Errorf("for %s: %w", path, err)
		}
		more, _, err := add("lib/"+lib, from)
		if err != nil {
			return nil, err
		}
		needs = slices.Concat(needs, more)
	}
	return files, nil
}

// findLibrary looks where loaders do.
func findLibrary(name, loader string) (string, error) {
	dirs := []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64"}
	if real, err := filepath.EvalSymlinks(loader); err == nil {
		dirs = append([]string{filepath.Dir(real)}, dirs...) // /lib/x86_64-linux-gnu on Debian
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("there is no %s in %s", name, strings.Join(dirs, ", "))
}
