package bundle

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A module is a loadable part of a kernel.
type module struct {
	name string // as the kernel spells it, with '_'
	path string // below /lib/modules/RELEASE, without the suffix of a compression
	data []byte // not compressed
}

// modules describes the modules of one kernel, in a directory laid out as in a package.
type modules struct {
	dir     string
	files   map[string]string // by name, below dir
	builtin map[string]bool   // modules in the kernel itself
}

// moduleName returns the kernel's name of the module in a file of that name.
func moduleName(file string) string {
	base, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(base, "-", "_")
}

// openModules lists the modules in dir; none if dir is "".
func openModules(dir string) (*modules, error) {
	m := &modules{dir: dir, files: map[string]string{}, builtin: map[string]bool{}}
	if dir == "" {
		return m, nil
	}
	text, err := os.ReadFile(filepath.Join(dir, "modules.builtin"))
	if err != nil {
		return nil, newDamageError(err, "%s has no list of modules that are built into the kernel", dir)
	}
	for line := range strings.Lines(string(text)) {
		m.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	err = filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.Type().IsRegular() && isModule(e.Name()) {
			rel, err := filepath.Rel(dir, file)
			if err != nil {
				return err
			}
			m.files[moduleName(rel)] = filepath.ToSlash(rel)
		}
		return nil
	})
	return m, err
}

func isModule(name string) bool {
	_, suffix, ok := strings.Cut(name, ".ko")
	return ok && (suffix == "" || slices.Contains([]string{".xz", ".zst", ".gz"}, suffix))
}

// resolveModules returns the named modules and all that they need, each after those it
// depends on: in this order the guest can load them. It omits modules that are built in.
// A name that ends with '?' may be missing.
func (m *modules) resolveModules(names []string) ([]module, error) {
	var list []module
	state := map[string]bool{} // true while its dependencies are being listed
	var add func(name string, optional bool) error
	add = func(name string, optional bool) error {
		name = strings.ReplaceAll(name, "-", "_")
		if m.builtin[name] {
			return nil
		}
		if busy, seen := state[name]; seen {
			if busy {
				return newDamageError(nil, "module %s depends on itself", name)
			}
			return nil
		}
		file, ok := m.files[name]
		if !ok {
			if optional {
				return nil
			}
			return newDamageError(nil, "the kernel has no module %s", name)
		}
		state[name] = true
		data, err := readModule(filepath.Join(m.dir, filepath.FromSlash(file)))
		if err != nil {
			return err
		}
		needs, wants, err := moduleDependencies(data)
		if err != nil {
			return newDamageError(err, "module %s", file)
		}
		for _, n := range wants {
			if err := add(n, true); err != nil {
				return err
			}
		}
		for _, n := range needs {
			if err := add(n, false); err != nil {
				return fmt.Errorf("for %s: %w", name, err)
			}
		}
		state[name] = false
		base, _, _ := strings.Cut(file, ".ko")
		list = append(list, module{name, base + ".ko", data})
		return nil
	}
	for _, n := range names {
		n, optional := strings.CutSuffix(n, "?")
		if err := add(n, optional || m.dir == ""); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// readModule returns a decompressed module: not every kernel can decompress modules.
func readModule(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	plain, err := newDecompressor(f)
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	return io.ReadAll(io.LimitReader(plain, maxKernel))
}

// moduleDependencies returns the modules that a module needs, and the optional ones that
// should be loaded before it.
func moduleDependencies(data []byte) (needs, wants []string, err error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, nil, err
	}
	section := f.Section(".modinfo")
	if section == nil {
		return nil, nil, fmt.Errorf("has no .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, nil, err
	}
	for line := range bytes.SplitSeq(info, []byte{0}) {
		key, value, _ := strings.Cut(string(line), "=")
		switch key {
		case "depends":
			needs = strings.FieldsFunc(value, func(r rune) bool { return r == ',' })
		case "softdep":
			if before, ok := strings.CutPrefix(value, "pre: "); ok {
				before, _, _ = strings.Cut(before, "post:")
				wants = append(wants, strings.Fields(before)...)
			}
		}
	}
	return needs, wants, nil
}
