package bundle

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// makeKernel makes the part of a kernel in dir, with the wanted modules and those that
// they need, from file: a Debian package or a kernel. from is the name of the source.
func makeKernel(ctx context.Context, dir, file, from string, wanted []string) (*part, error) {
	kernel, tree := file, ""
	if ok, err := isDeb(file); err != nil {
		return nil, err
	} else if ok {
		tree = filepath.Join(filepath.Dir(dir), "unpacked")
		if err := unpackKernel(ctx, file, tree); err != nil {
			return nil, err
		}
		kernel = filepath.Join(tree, kernelName)
	}
	k, err := readKernel(kernel)
	if err != nil {
		return nil, err
	}
	p := &part{Kernel: &Kernel{Release: k.release, Package: from}}
	if err := os.WriteFile(filepath.Join(dir, kernelName), k.data, 0o644); err != nil {
		return nil, err
	}
	if p.Kernel.File, err = describeFile(dir, kernelName); err != nil {
		return nil, err
	}
	if err := addELF(p.Kernel, k, dir); err != nil {
		return nil, err
	}
	available := ""
	if tree != "" {
		releases, err := os.ReadDir(filepath.Join(tree, modulesDir))
		if err != nil || len(releases) != 1 {
			return nil, newDamageError(err, "%s must have the modules of one kernel, and has those of %d", file, len(releases))
		}
		p.Kernel.Release = releases[0].Name()
		available = filepath.Join(tree, modulesDir, p.Kernel.Release)
	}
	all, err := openModules(available)
	if err != nil {
		return nil, err
	}
	load, err := all.resolveModules(wanted)
	if err != nil {
		return nil, err
	}
	for _, m := range load {
		to := filepath.Join(dir, modulesDir, filepath.FromSlash(m.path))
		if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
			return nil, err
		}
		if err := os.WriteFile(to, m.data, 0o600); err != nil {
			return nil, err
		}
		p.Modules = append(p.Modules, m.path)
	}
	return p, nil
}

// addELF writes the unpacked kernel, for hypervisors that boot an ELF file.
func addELF(to *Kernel, k *kernelImage, dir string) error {
	elf, err := k.extractELF()
	if err != nil || elf == nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, elfName), elf, 0o644); err != nil {
		return err
	}
	f, err := describeFile(dir, elfName)
	to.ELF = &f
	return err
}

func isDeb(file string) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	magic := make([]byte, len(arMagic))
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == arMagic, nil
}

// unpackKernel unpacks the kernel and the modules of a package into the new directory
// tree, as kernel and modules/RELEASE/.
func unpackKernel(ctx context.Context, deb, tree string) error {
	if err := os.Mkdir(tree, 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(tree, modulesDir), 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(tree) // names in the package cannot lead out of it
	if err != nil {
		return err
	}
	defer root.Close()
	found := false
	err = readDeb(ctx, deb, func(hdr *tar.Header, r io.Reader) error {
		name := path.Clean("/" + hdr.Name)[1:]
		if hdr.Typeflag != tar.TypeReg {
			return nil
		}
		to := ""
		if base := path.Base(name); strings.HasPrefix(name, "boot/vmlinu") && !found {
			found, to = true, kernelName
		} else if rest, ok := strings.CutPrefix(strings.TrimPrefix(name, "usr/"), "lib/modules/"); ok && (isModule(base) || base == "modules.builtin") {
			to = path.Join(modulesDir, rest)
		}
		if to == "" {
			return nil
		}
		if err := root.MkdirAll(path.Dir(to), 0o700); err != nil {
			return err
		}
		f, err := root.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, io.LimitReader(r, maxKernel))
		if err1 := f.Close(); err == nil {
			err = err1
		}
		return err
	})
	if err == nil && !found {
		return newDamageError(nil, "%s has no kernel in /boot: use a package such as %s%s depends on", deb, KernelPackage, runtime.GOARCH)
	}
	return err
}

// loadPart returns the wanted modules, and those that they need, from a kernel's part.
func loadPart(p *part, wanted []string) ([]module, error) {
	if len(p.Modules) == 0 {
		return nil, nil
	}
	m := &modules{dir: filepath.Join(p.dir, modulesDir), files: map[string]string{}, builtin: map[string]bool{}}
	for _, file := range p.Modules {
		m.files[moduleName(file)] = file
	}
	// A module that the part lacks is built into the kernel, or optional and missing.
	var there []string
	for _, n := range wanted {
		if n = strings.TrimSuffix(n, "?"); m.files[strings.ReplaceAll(n, "-", "_")] != "" {
			there = append(there, n)
		}
	}
	return m.resolveModules(slices.Clip(there))
}
