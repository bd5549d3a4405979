//go:build linux

package overlay

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A layer is built as gVisor would build it: an index, and a store that holds the data.
type layer struct {
	t     *testing.T
	index bytes.Buffer
	w     *tar.Writer
	store bytes.Buffer
}

var modTime = time.Date(2001, 2, 3, 4, 5, 6, 7e6, time.UTC)

func newLayer(t *testing.T) *layer {
	l := &layer{t: t}
	l.w = tar.NewWriter(&l.index)
	return l
}

func (l *layer) addEntry(h tar.Header, content []byte) {
	l.t.Helper()
	h.Size, h.ModTime = int64(len(content)), modTime
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	h.Uid, h.Gid = os.Getuid(), os.Getgid()
	h.Format = tar.FormatPAX
	if err := l.w.WriteHeader(&h); err != nil {
		l.t.Fatal(err)
	}
	if _, err := l.w.Write(content); err != nil {
		l.t.Fatal(err)
	}
}

func (l *layer) addDir(name string) {
	l.addEntry(tar.Header{Typeflag: tar.TypeDir, Name: "./" + name}, nil)
}

func (l *layer) addOpaque(name string) {
	l.addEntry(tar.Header{Typeflag: tar.TypeDir, Name: "./" + name, PAXRecords: map[string]string{"SCHILY.xattr.trusted.overlay.opaque": "y"}}, nil)
}

func (l *layer) addWhiteout(name string) {
	l.addEntry(tar.Header{Typeflag: tar.TypeChar, Name: "./" + name}, nil)
}

// addFile adds a file of that size that holds each text at its offset, in whole pages, as
// gVisor stores them.
func (l *layer) addFile(name string, size int64, at ...any) {
	content := binary.LittleEndian.AppendUint64(nil, uint64(size))
	for i := 0; i < len(at); i += 2 {
		start := uint64(at[i].(int))
		page := make([]byte, 4096)
		copy(page, at[i+1].(string))
		for _, v := range []uint64{start, start + 4096, uint64(l.store.Len())} {
			content = binary.LittleEndian.AppendUint64(content, v)
		}
		l.store.Write(page)
	}
	l.addEntry(tar.Header{Typeflag: tar.TypeReg, Name: "./" + name, Mode: 0o640}, content)
}

func (l *layer) packLayer(limit int64) ([]byte, error) {
	l.t.Helper()
	if err := l.w.Close(); err != nil {
		l.t.Fatal(err)
	}
	var packed bytes.Buffer
	err := Pack(&packed, &l.index, bytes.NewReader(l.store.Bytes()), limit)
	return packed.Bytes(), err
}

// unpackOver packs the layer and unpacks it over a tree that has the files in lower.
func (l *layer) unpackOver(lower ...string) string {
	l.t.Helper()
	root := l.t.TempDir()
	for _, name := range lower {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			l.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("lower"), 0o644); err != nil {
			l.t.Fatal(err)
		}
	}
	packed, err := l.packLayer(math.MaxInt64)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := Unpack(root, bytes.NewReader(packed)); err != nil {
		l.t.Fatal(err)
	}
	return root
}

// listTree lists the tree below root: each name with the beginning of its content.
func listTree(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == root {
			return err
		}
		name, _ := filepath.Rel(root, path)
		switch {
		case info.IsDir():
			b.WriteString(name + "/\n")
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.WriteString(name + " " + string(bytes.TrimRight(data, "\x00")) + "\n")
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(name + " -> " + target + "\n")
		default:
			b.WriteString(name + " " + info.Mode().Type().String() + "\n")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestALayerIsAppliedToWhatLiesBelow(t *testing.T) {
	l := newLayer(t)
	l.addDir("")
	l.addDir("etc/")
	l.addFile("etc/changed", 5, 0, "upper")
	l.addWhiteout("etc/gone")
	l.addWhiteout("etc/never")
	l.addEntry(tar.Header{Typeflag: tar.TypeLink, Name: "./tree", Linkname: "./etc/gone"}, nil)
	l.addOpaque("anew/")
	l.addFile("anew/only", 3, 0, "one")
	l.addDir("was-file/")
	l.addFile("was-file/in", 2, 0, "in")
	l.addFile("was-dir", 4, 0, "file")
	l.addEntry(tar.Header{Typeflag: tar.TypeLink, Name: "./hard", Linkname: "./was-dir"}, nil)
	l.addEntry(tar.Header{Typeflag: tar.TypeSymlink, Name: "./soft", Linkname: "../out"}, nil)
	l.addEntry(tar.Header{Typeflag: tar.TypeFifo, Name: "./pipe"}, nil)
	root := l.unpackOver("etc/changed", "etc/gone", "etc/kept", "tree/a/b", "anew/old", "anew/deep/old", "was-file", "was-dir/x", "soft")
	want := `anew/
anew/only one
etc/
etc/changed upper
etc/kept lower
hard file
pipe p---------
soft -> ../out
was-dir file
was-file/
was-file/in in
`
	if got := listTree(t, root); got != want {
		t.Errorf("the tree is\n%swant\n%s", got, want)
	}
	a, _ := os.Stat(filepath.Join(root, "hard"))
	b, _ := os.Stat(filepath.Join(root, "was-dir"))
	if !os.SameFile(a, b) {
		t.Error("a hard link became a copy")
	}
}

func TestModesAndTimesAreKept(t *testing.T) {
	l := newLayer(t)
	l.addEntry(tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o711}, nil)
	l.addEntry(tar.Header{Typeflag: tar.TypeDir, Name: "./locked/", Mode: 0o500}, nil)
	l.addFile("locked/file", 1, 0, "x")
	l.addEntry(tar.Header{Typeflag: tar.TypeDir, Name: "./sticky/", Mode: 0o1777}, nil)
	l.addEntry(tar.Header{Typeflag: tar.TypeFifo, Name: "./pipe", Mode: 0o4755}, nil)
	root := l.unpackOver()
	defer os.Chmod(filepath.Join(root, "locked"), 0o700)
	for name, want := range map[string]uint32{".": 0o711, "locked": 0o500, "locked/file": 0o640, "sticky": 0o1777, "pipe": 0o4755} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode&^unix.S_IFMT != want || time.Unix(st.Mtim.Unix()).Compare(modTime) != 0 {
			t.Errorf("%s has mode %o and time %v, want %o and %v", name, st.Mode&^unix.S_IFMT, time.Unix(st.Mtim.Unix()), want, modTime)
		}
	}
}

func TestHolesStayHoles(t *testing.T) {
	const size = 1 << 40
	l := newLayer(t)
	l.addDir("")
	l.addFile("disk", size, 0, "first", 4096, "second", 1<<39, "middle", size-4096, "last")
	l.addFile("hole", 1<<30)
	l.addFile("empty", 0)
	packed, err := l.packLayer(4 * 4096)
	if err != nil {
		t.Fatal(err)
	}
	if len(packed) > 64<<10 {
		t.Errorf("packed it has %d bytes", len(packed))
	}
	root := t.TempDir()
	if err := Unpack(root, bytes.NewReader(packed)); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(root, "disk"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for off, want := range map[int64]string{0: "first", 4096: "second", 1 << 39: "middle", size - 4096: "last", 1 << 20: ""} {
		b := make([]byte, 8)
		if _, err := f.ReadAt(b, off); err != nil || string(bytes.TrimRight(b, "\x00")) != want {
			t.Errorf("at %d: %q, %v, want %q", off, b, err, want)
		}
	}
	for name, want := range map[string]int64{"disk": size, "hole": 1 << 30, "empty": 0} {
		info, err := os.Stat(filepath.Join(root, name))
		if err != nil || info.Size() != want {
			t.Errorf("%s: %v, %v, want %d bytes", name, info, err, want)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("it takes %d bytes on disk: %v", st.Blocks*512, err)
	}
}

func TestExtendedAttributesAreKept(t *testing.T) {
	l := newLayer(t)
	l.addDir("")
	l.addEntry(tar.Header{Typeflag: tar.TypeReg, Name: "./f", PAXRecords: map[string]string{
		"SCHILY.xattr.user.color": "red", "ATOLL.unknown": "x",
	}}, binary.LittleEndian.AppendUint64(nil, 0))
	root := l.unpackOver()
	b := make([]byte, 10)
	n, err := unix.Getxattr(filepath.Join(root, "f"), "user.color", b)
	if errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no extended attributes")
	}
	if err != nil || string(b[:n]) != "red" {
		t.Errorf("user.color is %q, %v", b[:max(n, 0)], err)
	}
}

func TestWhatIsMountedIsLeftAlone(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can mount")
	}
	l := newLayer(t)
	l.addDir("")
	l.addDir("work/")
	l.addFile("work/below", 5, 0, "upper")
	l.addWhiteout("gone")
	packed, err := l.packLayer(math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	for _, dir := range []string{"work", "gone/deep"} {
		path := filepath.Join(root, dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("atoll-test", path, "tmpfs", 0, ""); err != nil {
			t.Skipf("mount: %v", err)
		}
		defer unix.Unmount(path, unix.MNT_DETACH)
		if err := os.WriteFile(filepath.Join(path, "mine"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Unpack(root, bytes.NewReader(packed)); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a layer that removes a mount: %v, want %v", err, unix.EBUSY)
	}
	want := "gone/\ngone/deep/\ngone/deep/mine \nwork/\nwork/mine \n"
	if got := listTree(t, root); got != want {
		t.Errorf("the tree is\n%swant\n%s", got, want)
	}
}

func TestPackTrustsNobody(t *testing.T) {
	words := func(v ...uint64) []byte {
		var b []byte
		for _, w := range v {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		return b
	}
	for name, content := range map[string][]byte{
		"no size":            {1, 2, 3},
		"half a segment":     words(10, 0, 10),
		"negative size":      words(1<<63, 0, 4096, 0),
		"backwards":          words(8192, 4096, 0, 0),
		"overlapping":        words(8192, 0, 4096, 0, 2048, 8192, 0),
		"beyond the store":   words(4096, 0, 4096, 1<<40),
		"more than is there": words(4096, 0, 4096, 2048),
	} {
		t.Run(name, func(t *testing.T) {
			l := newLayer(t)
			l.store.Write(make([]byte, 4096))
			l.addEntry(tar.Header{Typeflag: tar.TypeReg, Name: "./f"}, content)
			if _, err := l.packLayer(1 << 20); err == nil {
				t.Error("it was packed")
			}
		})
	}
	l := newLayer(t)
	for range 3 { // the same pages again and again
		l.addFile("f", 4096, 0, "x")
	}
	if _, err := l.packLayer(2 * 4096); !errors.Is(err, ErrLimit) {
		t.Errorf("more than the limit: %v, want %v", err, ErrLimit)
	}
}

func TestALayerThatIsCutOffIsAnError(t *testing.T) {
	l := newLayer(t)
	l.addDir("")
	l.addFile("sparse", 1<<20, 8192, "data")
	l.addFile("plain", 4096, 0, "data")
	packed, err := l.packLayer(math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	for n := 512; n < len(packed)-4*512; n += 512 {
		if err := Unpack(t.TempDir(), bytes.NewReader(packed[:n+100])); err == nil {
			t.Errorf("the first %d of %d bytes were a whole layer", n+100, len(packed))
		}
	}
	for _, bad := range [][]extent{{{-1, 1}}, {{0, -1}}, {{0, math.MaxInt64}}, {{8, 1}, {0, 1}}} {
		var b bytes.Buffer
		if err := writeExtents(&b, bad); err != nil {
			t.Fatal(err)
		}
		if got, err := readExtents(io.MultiReader(&b), 100); err == nil {
			t.Errorf("%v were read as %v", bad, got)
		}
	}
}
