package bundle

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll/machine/vm"
)

// Kinds of files, as Unix counts them.
const (
	modeType = 0o170000
	modeDir  = 0o040000
	modeChar = 0o020000
	modeFile = 0o100000
)

// initrdDirs lists the directories of an initrd that the guest mounts file systems on,
// besides the parents of files.
var initrdDirs = []string{"dev", "etc", "mnt", "newroot", "proc", "run", "sys", "tmp"}

// writeInitrd writes an initrd: the guest's program as /init, the modules, their list,
// and programs by their paths without the first slash. Files belong to root and have no
// time, so that the same guest and modules give the same bytes.
func writeInitrd(w io.Writer, init []byte, release string, load []module, programs map[string][]byte) error {
	files := map[string][]byte{"init": init}
	maps.Copy(files, programs)
	var list bytes.Buffer
	for _, m := range load {
		name := path.Join("lib/modules", release, m.path)
		files[name] = m.data
		fmt.Fprintf(&list, "/%s\n", name)
	}
	files[strings.TrimPrefix(vm.ModuleList, "/")] = list.Bytes()

	dirs := map[string]bool{}
	for _, d := range initrdDirs {
		dirs[d] = true
	}
	for name := range files {
		for d := path.Dir(name); d != "."; d = path.Dir(d) {
			dirs[d] = true
		}
	}
	names := make([]string, 0, len(files)+len(dirs))
	for name := range files {
		names = append(names, name)
	}
	for d := range dirs {
		names = append(names, d)
	}
	slices.Sort(names) // a directory is before what is in it

	c := cpio{w: w}
	for _, name := range names {
		mode := uint32(modeFile | 0o644)
		switch {
		case dirs[name]:
			mode = modeDir | 0o755
		case name == "init", programs[name] != nil:
			mode = modeFile | 0o755
		}
		c.addEntry(name, mode, 0, 0, files[name])
		if name == "dev" {
			// Until the guest has mounted /dev, the kernel prints its output here.
			c.addEntry("dev/console", modeChar|0o600, 5, 1, nil)
		}
	}
	return c.close()
}

// A cpio writes an archive in the format "newc", the only one that kernels unpack.
type cpio struct {
	w   io.Writer
	n   int64  // bytes written
	ino uint32 // of the last entry
	err error
}

func (c *cpio) addEntry(name string, mode, major, minor uint32, data []byte) {
	c.ino++
	links := uint32(1)
	if mode&modeType == modeDir {
		links = 2
	}
	c.writeHeader(c.ino, mode, links, uint32(len(data)), major, minor, name)
	c.write(data)
	c.writePadding()
}

// writeHeader writes the 13 numbers of an entry, each with eight hexadecimal digits, and
// its name.
func (c *cpio) writeHeader(ino, mode, links, size, major, minor uint32, name string) {
	const nobody, never, here, unchecked = 0, 0, 0, 0 // root, in fact
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		ino, mode, nobody, nobody, links, never, size, here, here, major, minor, len(name)+1, unchecked, name))
	c.writePadding()
}

func (c *cpio) writePadding() { c.write(make([]byte, -c.n&3)) }

func (c *cpio) write(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.err = err
}

func (c *cpio) close() error {
	c.writeHeader(0, 0, 1, 0, 0, 0, "TRAILER!!!")
	return c.err
}
