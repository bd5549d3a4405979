//go:build linux

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll/internal/testing/testenv"
	. "github.com/seed46cd37a8/atoll/internal/testing/testimage"

	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// An unpackCell is a directory to unpack into, beside files that must not change.
type unpackCell struct {
	t          *testing.T
	outer, dir string
}

func newCell(t *testing.T) *unpackCell {
	t.Helper()
	c := &unpackCell{t: t, outer: t.TempDir()}
	c.dir = filepath.Join(c.outer, "a", "root")
	for _, d := range []string{c.dir, filepath.Join(c.outer, "etc")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"etc/passwd", "secret", "a/secret"} {
		if err := os.WriteFile(filepath.Join(c.outer, f), []byte("host"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := fsutil.RemoveAll(c.dir); err != nil {
			t.Errorf("removing what was unpacked: %v", err)
		}
	})
	return c
}

// unpackLayers applies the layers, each a tar stream.
func (c *unpackCell) unpackLayers(owners bool, limit int64, layers ...[]byte) error {
	tr, err := newTree(c.dir, owners, limit, slog.New(slog.DiscardHandler))
	if err != nil {
		c.t.Fatal(err)
	}
	defer tr.close()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Scale(5*time.Second)) // in which a disk is not filled
	defer cancel()
	for _, l := range layers {
		if err := tr.unpackLayer(ctx, bytes.NewReader(l)); err != nil {
			return err
		}
	}
	return tr.applyAttributes(ctx)
}

// checkUntouched checks that nothing but the directory has changed.
func (c *unpackCell) checkUntouched() {
	c.t.Helper()
	want := map[string]string{"a": "dir", "a/secret": "host", "etc": "dir", "etc/passwd": "host", "secret": "host"}
	got := listTree(c.t, c.outer)
	for path := range got {
		if strings.HasPrefix(path, "a/root") {
			delete(got, path)
		}
	}
	if !maps.Equal(got, want) {
		c.t.Errorf("outside of the image there is %v, want %v", got, want)
	}
}

// listTree describes a tree: "dir", "-> target", or the content of a file.
func listTree(t testing.TB, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		switch d.Type() {
		case fs.ModeDir:
			if rel != "." {
				m[rel] = "dir"
			}
		case fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			m[rel] = "-> " + target
		case 0:
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			m[rel] = string(b)
		default:
			m[rel] = d.Type().String()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type entries = []Entry

func TestLayers(t *testing.T) {
	dev := Entry{Header: tar.Header{Typeflag: tar.TypeChar, Name: "dev/mem", Devmajor: 1, Devminor: 1}}
	block := Entry{Header: tar.Header{Typeflag: tar.TypeBlock, Name: "dev/sda", Devmajor: 8}}
	fifo := Entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}}
	for _, tt := range []struct {
		name   string
		layers []entries
		want   map[string]string
	}{
		{"nothing", nil, map[string]string{}},
		{"files, directories, links",
			[]entries{{Dir("./etc/", 0), File("./etc/motd", 0, "hi"), Symlink("motd", "etc/motd"), Link("hard", "etc/motd")}},
			map[string]string{"etc": "dir", "etc/motd": "hi", "motd": "-> etc/motd", "hard": "hi"}},
		{"missing parents are made",
			[]entries{{File("a/b/c", 0, "1")}},
			map[string]string{"a": "dir", "a/b": "dir", "a/b/c": "1"}},
		{"the last of equal names wins",
			[]entries{{File("f", 0, "1"), File("f", 0, "2"), Dir("f", 0), File("f", 0, "3"), Symlink("f", "x"), File("f", 0, "4")}},
			map[string]string{"f": "4"}},
		{"a file replaces a directory and all in it",
			[]entries{{File("d/sub/x", 0, "1")}, {File("d", 0, "2")}},
			map[string]string{"d": "2"}},
		{"a directory replaces a link, and what it led to stays",
			[]entries{{File("real/x", 0, "1"), Symlink("d", "real")}, {Dir("d", 0), File("d/y", 0, "2")}},
			map[string]string{"real": "dir", "real/x": "1", "d": "dir", "d/y": "2"}},
		{"a directory keeps what is in it",
			[]entries{{File("d/x", 0, "1")}, {Dir("d", 0o700), File("d/y", 0, "2")}},
			map[string]string{"d": "dir", "d/x": "1", "d/y": "2"}},
		{"a directory that was removed comes back empty",
			[]entries{{File("d/sub/x", 0, "1")}, {File(".wh.d", 0, "")}, {File("d/sub/y", 0, "2")}},
			map[string]string{"d": "dir", "d/sub": "dir", "d/sub/y": "2"}},
		{"a file is not written through its other name",
			[]entries{{File("a", 0, "1"), Link("b", "a")}, {File("b", 0, "2")}},
			map[string]string{"a": "1", "b": "2"}},
		{"a whiteout removes one file",
			[]entries{{File("d/x", 0, "1"), File("d/y", 0, "1")}, {File("d/.wh.x", 0, "")}},
			map[string]string{"d": "dir", "d/y": "1"}},
		{"a whiteout removes a directory, also a whiteout of nothing is fine",
			[]entries{{File("d/e/x", 0, "1")}, {File("d/.wh.e", 0, ""), File("no/where/.wh.x", 0, ""), File(".wh.y", 0, "")}},
			map[string]string{"d": "dir"}},
		{"a whiteout of a link leaves its target",
			[]entries{{File("x", 0, "1"), Symlink("l", "x")}, {File(".wh.l", 0, "")}},
			map[string]string{"x": "1"}},
		{"a whiteout is for lower layers only, before and after",
			[]entries{{File("d/x", 0, "1"), File("e/x", 0, "1")}, {File(".wh.d", 0, ""), File("d/y", 0, "2"), File("e/y", 0, "2"), File(".wh.e", 0, "")}},
			map[string]string{"d": "dir", "d/y": "2", "e": "dir", "e/y": "2"}},
		{"an opaque directory hides lower layers only, before and after",
			[]entries{
				{File("d/x", 0, "1"), File("d/sub/x", 0, "1"), File("e/x", 0, "1"), File("e/sub/x", 0, "1")},
				{File("d/.wh..wh..opq", 0, ""), File("d/y", 0, "2"), File("e/sub/y", 0, "2"), File("e/.wh..wh..opq", 0, "")},
			},
			map[string]string{"d": "dir", "d/y": "2", "e": "dir", "e/sub": "dir", "e/sub/y": "2"}},
		{"what AUFS left behind is no file",
			[]entries{{File(".wh..wh.plnk", 0, ""), File("d/.wh..wh.aufs", 0, "")}},
			map[string]string{}},
		{"devices and pipes are left out, and links to them",
			[]entries{{dev, block, fifo, Link("dev/kmem", "dev/mem"), File("x", 0, "1")}},
			map[string]string{"dev": "dir", "x": "1"}},
		{"a file in the place of a device can be linked to",
			[]entries{{dev}, {File("dev/mem", 0, "1")}, {Link("l", "dev/mem")}},
			map[string]string{"dev": "dir", "dev/mem": "1", "l": "1"}},
		{"a device replaces a file by nothing",
			[]entries{{File("pipe", 0, "1")}, {fifo}},
			map[string]string{}},
		{"names of all kinds",
			[]entries{{File("sp ace/new\nline", 0, "1"), File("-rf", 0, "2"), File("\xff\xfe", 0, "3"), File(strings.Repeat("n", 255), 0, "4")}},
			map[string]string{"sp ace": "dir", "sp ace/new\nline": "1", "-rf": "2", "\xff\xfe": "3", strings.Repeat("n", 255): "4"}},
		{"a long name in PAX",
			[]entries{{File(strings.Repeat("d/", 150)+"f", 0, "1")}},
			deepTree(150)},

		// Names and links that would lead out: taken as in a chroot.
		{"an absolute name",
			[]entries{{File("/etc/passwd", 0, "1"), File("//x", 0, "2")}},
			map[string]string{"etc": "dir", "etc/passwd": "1", "x": "2"}},
		{"dots that stay inside",
			[]entries{{File("a/../b", 0, "1")}},
			map[string]string{"b": "1"}},
		{"through an absolute link",
			[]entries{{Dir("run", 0), Symlink("var/run", "/run")}, {File("var/run/pid", 0, "1")}},
			map[string]string{"run": "dir", "run/pid": "1", "var": "dir", "var/run": "-> /run"}},
		{"through a link with too many dots",
			[]entries{{Symlink("up", "../../../../etc"), File("up/passwd", 0, "1")}},
			map[string]string{"up": "-> ../../../../etc", "etc": "dir", "etc/passwd": "1"}},
		{"through links of links, dots among them",
			[]entries{{Dir("x/y/z", 0), Symlink("l1", "x/y"), Symlink("l2", "l1/../../l1/z"), File("l2/../f", 0, "1")}, {File("l2/g", 0, "2")}},
			map[string]string{"x": "dir", "x/y": "dir", "x/y/z": "dir", "l1": "-> x/y", "l2": "-> l1/../../l1/z", "f": "1", "x/y/z/g": "2"}},
		{"through a dangling link",
			[]entries{{Symlink("l", "/no/where"), File("l/f", 0, "1")}},
			map[string]string{"l": "-> /no/where", "no": "dir", "no/where": "dir", "no/where/f": "1"}},
		{"over a link to the outside",
			[]entries{{Symlink("f", "../../secret"), File("f", 0, "1")}, {Symlink("g", "/secret")}, {File("g", 0, "2")}},
			map[string]string{"f": "1", "g": "2"}},
		{"a directory over a link to the outside",
			[]entries{{Symlink("d", "../../etc")}, {Dir("d", 0o777), File("d/passwd", 0, "1")}},
			map[string]string{"d": "dir", "d/passwd": "1"}},
		{"a whiteout through a link to the outside",
			[]entries{{Symlink("up", "../..")}, {File("up/.wh.secret", 0, ""), File("up/.wh..wh..opq", 0, "")}},
			map[string]string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCell(t)
			var layers [][]byte
			for _, l := range tt.layers {
				layers = append(layers, Tar(t, l...))
			}
			if err := c.unpackLayers(false, -1, layers...); err != nil {
				t.Fatal(err)
			}
			if got := listTree(t, c.dir); !maps.Equal(got, tt.want) {
				t.Errorf("unpacked %q, want %q", got, tt.want)
			}
			c.checkUntouched()
		})
	}
}

// deepTree is the listing of a file below n directories.
func deepTree(n int) map[string]string {
	m := map[string]string{}
	for i := 1; i <= n; i++ {
		m[strings.Repeat("d/", i)[:2*i-1]] = "dir"
	}
	m[strings.Repeat("d/", n)+"f"] = "1"
	return m
}

func TestHostileLayers(t *testing.T) {
	var loop entries
	loop = append(loop, Symlink("l", "l"), File("l/f", 0, "1"))
	var chain entries
	for i := range 60 {
		chain = append(chain, Symlink(fmt.Sprintf("l%d", i), fmt.Sprintf("l%d", i+1)))
	}
	chain = append(chain, File("l0/f", 0, "1"))
	negative := File("f", 0, "1")
	negative.Uid, negative.Format = -1, tar.FormatGNU
	for _, tt := range []struct {
		name    string
		layers  []entries
		message string
	}{
		{"dots that lead out", []entries{{File("../secret", 0, "1")}}, "leads out"},
		{"dots in the middle that lead out", []entries{{File("a/b/../../../secret", 0, "1")}}, "leads out"},
		{"an absolute name with dots", []entries{{File("/../../secret", 0, "1")}}, "leads out"},
		{"only dots", []entries{{Dir("..", 0)}}, "leads out"},
		{"a whiteout that leads out", []entries{{File("../.wh.secret", 0, "")}}, "leads out"},
		{"a whiteout of dots", []entries{{File("a/.wh...", 0, "")}}, "whiteout of"},
		{"a whiteout of a dot", []entries{{File("a/.wh..", 0, "")}}, "whiteout of"},
		{"a whiteout of nothing", []entries{{File("a/.wh.", 0, "")}}, "whiteout of"},
		{"a hard link to the outside", []entries{{Link("h", "../../secret")}}, "leads out"},
		{"a hard link through a link to the outside", []entries{{Symlink("up", "../.."), Link("h", "up/secret")}}, "not a file"},
		{"a hard link through a link in a lower layer", []entries{{Symlink("up", "/")}, {Link("h", "up/etc/passwd")}}, "not there"},
		{"a hard link to nothing", []entries{{Link("h", "nothing")}}, "not a file"},
		{"a hard link to a directory", []entries{{Dir("d", 0), Link("h", "d")}}, "not a file"},
		{"a hard link to itself", []entries{{File("f", 0, "1"), Link("f", "./f")}}, "itself"},
		{"a link to itself on the way", []entries{loop}, "too many links"},
		{"a long chain of links on the way", []entries{chain}, "too many links"},
		{"a file on the way", []entries{{File("f", 0, "1"), File("f/g", 0, "2")}}, "not a directory"},
		{"a file as the top", []entries{{File(".", 0, "1")}}, "top"},
		{"a link as the top", []entries{{Symlink("./", "/etc")}}, "top"},
		{"a link to nothing at all", []entries{{Symlink("l", "")}}, "link target of"},
		{"a name too long for a path", []entries{{File(strings.Repeat("d/", 3000)+"f", 0, "1")}}, "longer than"},
		{"a name too long for a file", []entries{{File(strings.Repeat("n", 300), 0, "1")}}, "name too long"},
		{"an owner out of range", []entries{{negative}}, "out of range"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCell(t)
			var layers [][]byte
			for _, l := range tt.layers {
				layers = append(layers, Tar(t, l...))
			}
			err := c.unpackLayers(false, -1, layers...)
			var bad *damageError
			if !errors.As(err, &bad) && !isBadName(err) {
				t.Errorf("got %v, want damage", err)
			}
			if err != nil && !strings.Contains(err.Error(), tt.message) {
				t.Errorf("got %q, want %q in it", err, tt.message)
			}
			c.checkUntouched()
		})
	}
}

func TestLayerLimit(t *testing.T) {
	layer := Tar(t, File("a", 0, "12345"), File("b", 0, "12345"))
	if err := newCell(t).unpackLayers(false, 10, layer); err != nil {
		t.Errorf("10 bytes of 10: %v", err)
	}
	if err := newCell(t).unpackLayers(false, 9, layer); !errors.Is(err, errOverLimit) {
		t.Errorf("10 bytes of 9: got %v, want errOverLimit", err)
	}
}

// A sparseFile is an entry of size bytes of which only the last letters are data, in
// one of GNU tar's formats.
type sparseFile struct {
	name    string
	typ     byte
	records func(size int64) [][2]string
	header  func(block []byte, size int64) // changes the old header
	body    func(size int64) string        // in front of the data
}

// gnuSparse writes the map of holes where GNU tar first had it.
func gnuSparse(block []byte, size int64) {
	octal := func(n int64) string { // or base 256, where that is too long
		if n < 1<<33 {
			return fmt.Sprintf("%011o ", n)
		}
		b := make([]byte, 12)
		b[0] = 0x80
		binary.BigEndian.PutUint64(b[4:], uint64(n))
		return string(b)
	}
	copy(block[257:], "ustar  \x00")
	copy(block[386:], octal(size-4)+octal(4))
	copy(block[483:], octal(size))
}

var sparseFormats = []sparseFile{
	{name: "old GNU", typ: tar.TypeGNUSparse, header: gnuSparse},
	{name: "PAX 0.0", typ: tar.TypeReg, records: func(size int64) [][2]string {
		return [][2]string{{"GNU.sparse.size", fmt.Sprint(size)}, {"GNU.sparse.numblocks", "1"},
			{"GNU.sparse.offset", fmt.Sprint(size - 4)}, {"GNU.sparse.numbytes", "4"}}
	}},
	{name: "PAX 0.1", typ: tar.TypeReg, records: func(size int64) [][2]string {
		return [][2]string{{"GNU.sparse.size", fmt.Sprint(size)}, {"GNU.sparse.numblocks", "1"},
			{"GNU.sparse.name", "f"}, {"GNU.sparse.map", fmt.Sprintf("%d,4", size-4)}}
	}},
	{name: "PAX 1.0", typ: tar.TypeReg, records: func(size int64) [][2]string {
		return [][2]string{{"GNU.sparse.major", "1"}, {"GNU.sparse.minor", "0"}, {"GNU.sparse.name", "f"},
			{"GNU.sparse.realsize", fmt.Sprint(size)}}
	}, body: func(size int64) string {
		m := fmt.Sprintf("1\n%d\n4\n", size-4)
		return m + strings.Repeat("\x00", 512-len(m))
	}},
}

// tarStream returns the entry "f" of that size, which ends in "data", without the
// end of a tar stream.
func (s sparseFile) tarStream(t *testing.T, size int64) []byte {
	t.Helper()
	var stream []byte
	if s.records != nil {
		var text string
		for _, r := range s.records(size) {
			line := " " + r[0] + "=" + r[1] + "\n"
			n := len(line) + 2
			text += strconv.Itoa(n) + line
		}
		stream = rawEntry(t, "pax", tar.TypeXHeader, text, nil)
	}
	body := "data"
	if s.body != nil {
		body = s.body(size) + body
	}
	return append(stream, rawEntry(t, "f", s.typ, body, func(block []byte) {
		if s.header != nil {
			s.header(block, size)
		}
	})...)
}

// rawEntry is an entry of a kind that is not written nowadays; change has a
// look at its header.
func rawEntry(t *testing.T, name string, typ byte, body string, change func(block []byte)) []byte {
	t.Helper()
	stream := Tar(t, File(name, 0, body))
	stream = stream[:len(stream)-1024] // the end of a tar stream
	block := stream[:512]
	block[156] = typ
	if change != nil {
		change(block)
	}
	sum := 8 * int(' ')
	for i, b := range block {
		if i < 148 || i >= 156 {
			sum += int(b)
		}
	}
	copy(block[148:], fmt.Sprintf("%06o\x00 ", sum))
	return stream
}

// TestLayerSparse has entries of a few bytes that claim to be as large as it
// gets: they count with their full size, and no sum of sizes overflows.
func TestLayerSparse(t *testing.T) {
	const most = math.MaxInt64
	for _, format := range sparseFormats {
		t.Run(format.name, func(t *testing.T) {
			for _, size := range []int64{1 << 40, most, most - 7, most - 10, most / 2} {
				for _, limit := range []int64{9, 10, 1 << 20, 1 << 39} {
					layer := slices.Concat(rawEntry(t, "first", tar.TypeReg, "0123456789", nil), format.tarStream(t, size))
					if err := newCell(t).unpackLayers(false, limit, layer); !errors.Is(err, errOverLimit) {
						t.Fatalf("%d bytes, limit %d: got %v, want errOverLimit", size, limit, err)
					}
				}
			}
		})
	}
}

// TestLayerUnlimited has sizes whose sum overflows.
func TestLayerUnlimited(t *testing.T) {
	layer := slices.Concat(rawEntry(t, "first", tar.TypeReg, "0123456789", nil), sparseFormats[3].tarStream(t, math.MaxInt64-7))
	if err := newCell(t).unpackLayers(false, -1, layer); !errors.Is(err, errOverLimit) {
		t.Errorf("got %v, want errOverLimit", err)
	}
}

// TestHoles has files with holes, and files full of zeros: the content is the same,
// and the zeros take no space.
func TestHoles(t *testing.T) {
	const size = 64 << 20
	zeros := make([]byte, 4<<20)
	for name, tt := range map[string]struct {
		layer []byte
		want  func(content []byte) bool
		size  int64
	}{
		"zeros": {Tar(t, File("f", 0, string(zeros))), func(b []byte) bool { return bytes.Equal(b, zeros) }, int64(len(zeros))},
		"data before zeros": {Tar(t, File("f", 0, "data"+string(zeros))),
			func(b []byte) bool { return bytes.Equal(b, append([]byte("data"), zeros...)) }, int64(len(zeros)) + 4},
		"old GNU": {sparseFormats[0].tarStream(t, size), endsIn("data"), size},
		"PAX 0.0": {sparseFormats[1].tarStream(t, size), endsIn("data"), size},
		"PAX 0.1": {sparseFormats[2].tarStream(t, size), endsIn("data"), size},
		"PAX 1.0": {sparseFormats[3].tarStream(t, size), endsIn("data"), size},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCell(t)
			if err := c.unpackLayers(false, tt.size, tt.layer); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(c.dir, "f")
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if int64(len(content)) != tt.size || !tt.want(content) {
				t.Errorf("unpacked %d bytes, not the %d there were", len(content), tt.size)
			}
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if got := fi.Sys().(*syscall.Stat_t).Blocks * 512; got > 1<<20 {
				t.Errorf("takes %d bytes on disk, want only those that are not zero", got)
			}
		})
	}
}

// TestLayerMemory has many files with the longest paths: the tree holds little more
// than the base name of each in memory.
func TestLayerMemory(t *testing.T) {
	const files = 5000
	parent := strings.Repeat(strings.Repeat("d", 200)+"/", 20)
	list := entries{Dir(parent, 0)}
	for i := range files {
		e := Symlink(parent+strconv.Itoa(i), "x")
		if i%2 == 0 {
			e = Entry{Header: tar.Header{Typeflag: tar.TypeFifo, Name: e.Name}}
		}
		list = append(list, e)
	}
	stream := Tar(t, list...)
	list = nil
	tr, err := newTree(newCell(t).dir, false, -1, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer tr.close()
	before := heapBytes()
	if err := tr.unpackLayer(t.Context(), bytes.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	if got := (heapBytes() - before) / files; got > 400 {
		t.Errorf("remembers %d bytes of each file, want little more than its name", got)
	}
	runtime.KeepAlive(stream)
}

func heapBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLayerCounts checks each limit on the memory of a tree.
func TestLayerCounts(t *testing.T) {
	files := []entries{{File("a", 0, ""), File("b", 0, "")}, {File("c", 0, "")}}
	for _, tt := range []struct {
		name    string
		most    counts
		layers  []entries
		message string
	}{
		{"as many files", counts{3, 0, 3}, files, ""},
		{"too many files", counts{2, 0, 3}, files, "more than 2 files"},
		{"too long names", counts{3, 0, 2}, files, "more than 2 bytes of names"},
		{"as many directories", counts{5, 3, 5}, []entries{{Dir("a", 0), File("b/c/d", 0, "")}}, ""},
		{"too many directories", counts{5, 2, 5}, []entries{{Dir("a", 0), File("b/c/d", 0, "")}}, "more than 2 directories"},
		{"directories as files", counts{3, 3, 5}, []entries{{Dir("a", 0), File("b/c/d", 0, "")}}, "more than 3 files"},
		{"names of directories", counts{5, 3, 3}, []entries{{Dir("a", 0), File("b/c/d", 0, "")}}, "more than 3 bytes of names"},
		{"as deep", counts{9999, 9999, 9999}, []entries{{Dir(strings.Repeat("d/", maxDepth), 0)}}, ""},
		{"too deep", counts{9999, 9999, 9999}, []entries{{Dir(strings.Repeat("d/", maxDepth+1), 0)}}, "deeper than"},
		{"too deep through links", counts{9999, 9999, 9999}, []entries{
			{Symlink("l", strings.Repeat("d/", maxDepth/2)), Dir("l/x", 0), File("l/"+strings.Repeat("e/", maxDepth/2)+"f", 0, "")},
			{File("l/"+strings.Repeat("e/", maxDepth/2)+"g/h", 0, "")},
		}, "deeper than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := newTree(newCell(t).dir, false, -1, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			defer tr.close()
			tr.most = tt.most
			for _, l := range tt.layers {
				if err = tr.unpackLayer(t.Context(), bytes.NewReader(Tar(t, l...))); err != nil {
					break
				}
			}
			if err == nil {
				err = tr.applyAttributes(t.Context())
			}
			var big limitError
			if tt.message == "" && err != nil || tt.message != "" && (!errors.As(err, &big) || !strings.Contains(err.Error(), tt.message)) {
				t.Errorf("got %v, want %q", err, tt.message)
			}
			if err != nil && len(err.Error()) > 500 {
				t.Errorf("a message of %d bytes", len(err.Error()))
			}
		})
	}
}

// endsIn reports whether all but the end of a content is zero.
func endsIn(end string) func([]byte) bool {
	return func(b []byte) bool {
		rest, ok := bytes.CutSuffix(b, []byte(end))
		return ok && len(bytes.Trim(rest, "\x00")) == 0
	}
}

func TestModes(t *testing.T) {
	modified := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	list := entries{
		Dir("closed", 0o555), File("closed/in", 0o400, "1"), Dir("none", 0o100), File("none/f", 0o001, "2"),
		File("su", 0o4755, "3"), Dir("tmp", 0o1777), Dir("sg", 0o2755), Dir(".", 0o711),
	}
	for i := range list {
		list[i].ModTime = modified
	}
	c := newCell(t)
	if err := c.unpackLayers(false, -1, Tar(t, list...), Tar(t, File("made/f", 0, ""))); err != nil {
		t.Fatal(err)
	}
	for _, e := range append(list, Dir("made", 0o755)) {
		fi, err := os.Lstat(filepath.Join(c.dir, e.Name))
		if err != nil {
			t.Error(err)
			continue
		}
		if got, want := fi.Mode(), e.FileInfo().Mode(); got != want {
			t.Errorf("%s: mode %v, want %v", e.Name, got, want)
		}
		if !e.ModTime.IsZero() && !fi.ModTime().Equal(modified) {
			t.Errorf("%s: modified %v, want %v", e.Name, fi.ModTime(), modified)
		}
	}
}

func TestOwners(t *testing.T) {
	if !canChown() {
		t.Skip("needs root")
	}
	const netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" // cap_net_raw+ep
	list := entries{Dir("home", 0o755), File("home/f", 0o6755, "1"), Symlink("home/l", "f"), File("ping", 0o755, "2")}
	for i := range list {
		list[i].Uid, list[i].Gid = 1000, 100
	}
	list[3].PAXRecords = map[string]string{
		"SCHILY.xattr.security.capability": netRaw, "SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.note": "x",
	}
	for _, owners := range []bool{true, false} {
		t.Run(fmt.Sprint(owners), func(t *testing.T) {
			c := newCell(t)
			if err := c.unpackLayers(owners, -1, Tar(t, list...)); err != nil {
				t.Fatal(err)
			}
			want := [2]uint32{0, 0}
			if owners {
				want = [2]uint32{1000, 100}
			}
			for _, e := range list {
				fi, err := os.Lstat(filepath.Join(c.dir, e.Name))
				if err != nil {
					t.Fatal(err)
				}
				st := fi.Sys().(*syscall.Stat_t)
				if got := [2]uint32{st.Uid, st.Gid}; got != want {
					t.Errorf("%s: owner %v, want %v", e.Name, got, want)
				}
			}
			if fi, _ := os.Lstat(filepath.Join(c.dir, "home/f")); fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != fs.ModeSetuid|fs.ModeSetgid {
				t.Errorf("home/f: mode %v, want setuid and setgid", fi.Mode())
			}
			got := readAttributes(t, filepath.Join(c.dir, "ping"))
			wantAttrs := map[string]string{}
			if owners {
				wantAttrs[capabilityAttr] = netRaw
			}
			if !maps.Equal(got, wantAttrs) {
				t.Errorf("ping: attributes %q, want %q", got, wantAttrs)
			}
		})
	}
}

func readAttributes(t *testing.T, path string) map[string]string {
	t.Helper()
	buf := make([]byte, 4096)
	n, err := syscall.Listxattr(path, buf)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 4096)
		n, err := syscall.Getxattr(path, name, value)
		if err != nil {
			t.Fatal(err)
		}
		m[name] = string(value[:n])
	}
	return m
}

// FuzzLayer unpacks any two tar streams: whatever they hold, nothing outside of
// the directory changes.
func FuzzLayer(f *testing.F) {
	for _, l := range []entries{
		{File("a/b", 0o644, "1"), Symlink("l", "../.."), Link("h", "a/b"), Dir("d", 0o000)},
		{File("l/secret", 0, "2"), File(".wh.a", 0, ""), File("d/.wh..wh..opq", 0, "")},
		{File("../secret", 0, "3")},
		{Symlink("up", "../../../../.."), Symlink("abs", "/etc")},
		{File("abs/passwd", 0, "4"), File("up/.wh.secret", 0, ""), Link("h2", "up/secret")},
	} {
		stream := Tar(f, l...)
		f.Add(stream, stream)
		f.Add(Tar(f, Symlink("l", "../.."), Symlink("abs", "/etc")), stream)
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		c := newCell(t)
		if err := c.unpackLayers(false, 1<<20, first, second); err != nil {
			var bad *damageError
			if !errors.As(err, &bad) && !isBadName(err) && !errors.Is(err, errOverLimit) {
				t.Errorf("got %v, want damage", err)
			}
		}
		c.checkUntouched()
	})
}

// FuzzClean checks that cleanName returns only names inside the image.
func FuzzClean(f *testing.F) {
	for _, name := range []string{"", ".", "/", "a", "a/b/", "../a", "a/../..", "/../a", "a//b/./c", "..a", "a/..b", "\x00"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		c, err := cleanName(name)
		if err != nil || c == "" {
			return
		}
		if !filepath.IsLocal(c) || c != filepath.Clean(c) || slices.Contains(strings.Split(c, "/"), "..") {
			t.Errorf("clean(%q) = %q, which is not inside", name, c)
		}
	})
}
