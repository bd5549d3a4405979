package bundle

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// formatterPath is the path in the initrd of the program that formats disks.
const formatterPath = "sbin/mke2fs"

// maxLibrary bounds the size of a library, in bytes.
const maxLibrary = 32 << 20

// withLibraries returns the files to run the program at path: the program, under the name
// as, its loader, if it has one, and its libraries, in lib, where the loader searches.
func withLibraries(path, as string) (map[string][]byte, error) {
	files := map[string][]byte{}
	add := func(name, from string) (needs []string, loader string, err error) {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, "", err
		}
		if len(data) > maxLibrary {
			return nil, "", newDamageError(nil, "%s has %d bytes", from, len(data))
		}
		files[name] = data
		f, err := elf.Open(from)
		if err != nil {
			return nil, "", newDamageError(err, "%s", from)
		}
		defer f.Close()
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP {
				text := make([]byte, p.Filesz)
				if _, err := p.ReadAt(text, 0); err != nil {
					return nil, "", newDamageError(err, "%s", from)
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

// findLibrary returns the path of a library in the directories that the loader searches.
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
	return "", fmt.Errorf("no library %s in %s", name, strings.Join(dirs, ", "))
}
