//go:build unix

package dirfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

var leave = Options{UID: -1, GID: -1}

// newTree serves a new directory as /work, beside one that nobody may reach.
func newTree(t *testing.T) (f *FS, dir, outside string) {
	t.Helper()
	base := t.TempDir()
	dir, outside = filepath.Join(base, "work"), filepath.Join(base, "outside")
	for _, d := range []string{dir, outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := New("/work", dir, leave)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if onBeneath {
		f.Close()
		if f.tree, err = openBeneath(dir); err != nil {
			t.Fatal(err)
		}
	}
	return f, dir, outside
}

// onBeneath has newTree use the tree of a directory that System is confined to.
var onBeneath bool

// A beneathTree passes the tests of os.Root's tree.
func TestOnBeneath(t *testing.T) {
	onBeneath = true
	defer func() { onBeneath = false }()
	for name, test := range map[string]func(*testing.T){
		"ReadWrite": TestReadWrite, "WriteIsAsAWhole": TestWriteIsAsAWhole, "WriteHasNoNameUntilItEnds": TestWriteHasNoNameUntilItEnds,
		"Kinds": TestKinds, "LinksDoNotLeadOut": TestLinksDoNotLeadOut, "LinksInside": TestLinksInside, "ListRenameRemove": TestListRenameRemove,
		"TooManyEntries": TestTooManyEntries, "TooLongPaths": TestTooLongPaths, "TooManyNames": TestTooManyNames, "LargeDirectory": TestLargeDirectory,
		"TarRoundTrip": TestTarRoundTrip, "TarOfAFile": TestTarOfAFile, "EvilArchives": TestEvilArchives, "UnpackOverALink": TestUnpackOverALink,
		"SpecialBitsAndOwners": TestSpecialBitsAndOwners,
	} {
		t.Run(name, test)
	}
}

func mustWrite(t *testing.T, f *FS, name, content string, opts atoll.WriteOptions) atoll.FileInfo {
	t.Helper()
	info, err := f.Write(t.Context(), name, strings.NewReader(content), opts)
	if err != nil {
		t.Fatalf("Write %q: %v", name, err)
	}
	return info
}

func readAll(f *FS, name string, offset int64) (string, atoll.FileInfo, error) {
	r, info, err := f.Read(context.Background(), name, offset)
	if err != nil {
		return "", info, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	return string(b), info, err
}

func TestReadWrite(t *testing.T) {
	f, dir, _ := newTree(t)
	info := mustWrite(t, f, "a/b/c.txt", "hello", atoll.WriteOptions{})
	if info.Path != "/work/a/b/c.txt" || info.Name != "c.txt" || info.Size != 5 || info.Mode != 0o644 || info.Type != atoll.TypeFile {
		t.Errorf("Write: %+v", info)
	}
	if got, info, err := readAll(f, "/work/a/b/c.txt", 1); err != nil || got != "ello" || info.Size != 5 {
		t.Errorf("Read: %q, %+v, %v", got, info, err)
	}
	if got, _, err := readAll(f, "a/b/c.txt", 99); err != nil || got != "" {
		t.Errorf("Read past the end: %q, %v", got, err)
	}
	mustWrite(t, f, "a/b/c.txt", "x", atoll.WriteOptions{Mode: 0o750})
	if info := mustWrite(t, f, "a/b/c.txt", "bye", atoll.WriteOptions{}); info.Mode != 0o750 {
		t.Errorf("replacing a file changed its mode to %o", info.Mode)
	}
	if info := mustWrite(t, f, "s", "", atoll.WriteOptions{Mode: 0o4755}); info.Mode != 0o755 {
		t.Errorf("mode %o, want no set-user-ID bit", info.Mode)
	}
	entries, err := os.ReadDir(filepath.Join(dir, "a/b"))
	if err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

func TestWriteIsAsAWhole(t *testing.T) {
	t.Run("without a name", func(t *testing.T) {
		f, dir, _ := newTree(t)
		testWhole(t, f, dir)
	})
	t.Run("with a temporary name", func(t *testing.T) {
		f, dir, _ := newTree(t)
		f.openUnnamed = func(tree) (*os.File, error) { return nil, errors.ErrUnsupported }
		testWhole(t, f, dir)
	})
}

// An interrupted unpack leaves the old files.
func TestUnpackWhole(t *testing.T) {
	for _, unnamed := range []bool{true, false} {
		t.Run(fmt.Sprint("unnamed ", unnamed), func(t *testing.T) {
			f, dir, _ := newTree(t)
			if !unnamed {
				f.openUnnamed = func(tree) (*os.File, error) { return nil, errors.ErrUnsupported }
			}
			mustWrite(t, f, "old", "old", atoll.WriteOptions{})
			for _, name := range []string{"old", "new", "below/new"} {
				var b bytes.Buffer
				w := tar.NewWriter(&b)
				if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 100, Mode: 0o644}); err != nil {
					t.Fatal(err)
				}
				looked := false
				half := readerFunc(func([]byte) (int, error) { // as a kill at this moment would leave it
					if looked = true; unnamed {
						if got, err := os.ReadFile(filepath.Join(dir, name)); string(got) != map[bool]string{true: "old"}[name == "old"] {
							t.Errorf("%s has %q, %v, half way", name, got, err)
						}
					}
					return 0, errors.New("torn")
				})
				if err := f.ReadTar(t.Context(), "/work", io.MultiReader(&b, strings.NewReader("1234567890"), half)); err == nil || !looked {
					t.Errorf("ReadTar of half of %s: %v", name, err)
				}
			}
			if got, _, err := readAll(f, "old", 0); got != "old" || err != nil {
				t.Errorf("the old file is now %q, %v", got, err)
			}
			if all, err := f.List(t.Context(), "/work", true); err != nil || len(all) != 2 {
				t.Errorf("there are %+v, %v; want old and below", all, err)
			}
		})
	}
}

// With WriteOptions.Sync, a file is on disk before it has a name.
func TestWriteSync(t *testing.T) {
	f, dir, _ := newTree(t)
	for _, text := range []string{"one", "two"} {
		mustWrite(t, f, "below/file", text, atoll.WriteOptions{Sync: true})
		if got, _, err := readAll(f, "below/file", 0); got != text || err != nil {
			t.Errorf("the file is now %q, %v", got, err)
		}
	}
	// A pipe can be written to, and neither be synchronized nor get a name.
	f.openUnnamed = func(tree) (*os.File, error) {
		r, w, err := os.Pipe()
		if err == nil {
			t.Cleanup(func() { r.Close() })
		}
		return w, err
	}
	for _, tt := range []struct {
		sync bool
		want error
	}{{true, syscall.EINVAL}, {false, syscall.EXDEV}} {
		_, err := f.Write(t.Context(), "below/file", strings.NewReader("three"), atoll.WriteOptions{Sync: tt.sync})
		if !errors.Is(err, tt.want) {
			t.Errorf("Write with Sync %v: %v, want %v", tt.sync, err, tt.want)
		}
		if got, err := os.ReadFile(filepath.Join(dir, "below", "file")); string(got) != "two" || err != nil {
			t.Errorf("the file is now %q, %v", got, err)
		}
	}
}

func testWhole(t *testing.T, f *FS, dir string) {
	mustWrite(t, f, "file", "old", atoll.WriteOptions{})
	fail := errors.New("client gone")
	_, err := f.Write(t.Context(), "file", io.MultiReader(strings.NewReader("new"), errReader{fail}), atoll.WriteOptions{})
	if !errors.Is(err, fail) {
		t.Errorf("Write: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = f.Write(ctx, "file", io.MultiReader(strings.NewReader("new"), readerFunc(func([]byte) (int, error) { cancel(); return 0, nil })), atoll.WriteOptions{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Write with an ended ctx: %v", err)
	}
	_, err = f.Write(t.Context(), "file", strings.NewReader("new"), atoll.WriteOptions{NoClobber: true})
	if !errors.Is(err, atoll.ErrAlreadyExists) {
		t.Errorf("NoClobber: %v, want ErrAlreadyExists", err)
	}
	if got, _, err := readAll(f, "file", 0); got != "old" || err != nil {
		t.Errorf("the file is now %q, %v", got, err)
	}
	mustWrite(t, f, "new", "x", atoll.WriteOptions{NoClobber: true})
	mustWrite(t, f, "file", "newer", atoll.WriteOptions{})
	if got, _, err := readAll(f, "file", 0); got != "newer" || err != nil {
		t.Errorf("the file is now %q, %v", got, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// A file has no name while it is being written, so that nothing of it remains if this
// process is killed.
func TestWriteHasNoNameUntilItEnds(t *testing.T) {
	f, dir, _ := newTree(t)
	if file, err := openUnnamed(f.tree); err != nil {
		t.Skipf("no files without a name here: %v", err)
	} else {
		file.Close()
	}
	mustWrite(t, f, "old", "x", atoll.WriteOptions{})
	for _, name := range []string{"new", "old"} {
		var during []os.DirEntry
		half := readerFunc(func([]byte) (n int, err error) {
			during, err = os.ReadDir(dir)
			return 0, errors.Join(err, io.ErrUnexpectedEOF)
		})
		_, err := f.Write(t.Context(), name, io.MultiReader(strings.NewReader("half"), half), atoll.WriteOptions{})
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("Write %s: %v", name, err)
		}
		if len(during) != 1 || during[0].Name() != "old" {
			t.Errorf("while %s is being written there are %v, want the old file alone", name, during)
		}
	}
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestKinds checks the kinds of errors of every operation.
func TestKinds(t *testing.T) {
	f, dir, _ := newTree(t)
	mustWrite(t, f, "file", "x", atoll.WriteOptions{})
	mustWrite(t, f, "full/file", "x", atoll.WriteOptions{})
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop", filepath.Join(dir, "loop")); err != nil {
		t.Fatal(err)
	}
	ops := map[string]func(name string) error{
		"read": func(n string) error { _, _, err := readAll(f, n, 0); return err },
		"seek": func(n string) error { _, _, err := readAll(f, n, -1); return err },
		"write": func(n string) error {
			_, err := f.Write(t.Context(), n, strings.NewReader(""), atoll.WriteOptions{})
			return err
		},
		"stat":  func(n string) error { _, err := f.Stat(t.Context(), n); return err },
		"list":  func(n string) error { _, err := f.List(t.Context(), n, true); return err },
		"mkdir": func(n string) error { return f.Mkdir(t.Context(), n, 0o700) },
		"rm":    func(n string) error { return f.Remove(t.Context(), n, false) },
		"rm -r": func(n string) error { return f.Remove(t.Context(), n, true) },
		"mv":    func(n string) error { return f.Rename(t.Context(), n, "moved") },
		"mv to": func(n string) error { return f.Rename(t.Context(), "file", n) },
		"tar":   func(n string) error { return f.WriteTar(t.Context(), n, io.Discard) },
		"untar": func(n string) error { return f.ReadTar(t.Context(), n, bytes.NewReader(make([]byte, 1024))) },
		"watch": func(n string) error {
			for _, err := range f.Watch(t.Context(), n, true) {
				return err
			}
			return nil
		},
	}
	for _, tt := range []struct {
		op, name string
		want     error
	}{
		{"read", "missing", atoll.ErrNotExist},
		{"read", "full", atoll.ErrInvalid},
		{"read", "fifo", atoll.ErrInvalid},
		{"read", "loop", atoll.ErrInvalid},
		{"read", "file/x", atoll.ErrInvalid},
		{"read", "a\x00b", atoll.ErrInvalid},
		{"read", strings.Repeat("x", 300), atoll.ErrInvalid},
		{"seek", "file", atoll.ErrInvalid},
		{"write", "full", atoll.ErrInvalid},
		{"write", "fifo", atoll.ErrInvalid},
		{"write", "file/x", atoll.ErrInvalid},
		{"write", ".", atoll.ErrInvalid},
		{"stat", "missing", atoll.ErrNotExist},
		{"stat", "loop", nil},
		{"list", "missing", atoll.ErrNotExist},
		{"list", "file", atoll.ErrInvalid},
		{"mkdir", "file", atoll.ErrAlreadyExists},
		{"mkdir", "full", nil},
		{"mkdir", ".", nil},
		{"rm", "missing", atoll.ErrNotExist},
		{"rm -r", "missing", atoll.ErrNotExist},
		{"rm", "full", atoll.ErrInvalid},
		{"rm -r", ".", atoll.ErrInvalid},
		{"rm -r", "/work/x/..", atoll.ErrInvalid},
		{"mv", "missing", atoll.ErrNotExist},
		{"mv", "/work", atoll.ErrInvalid},
		{"mv to", ".", atoll.ErrInvalid},
		{"mv to", "missing/x", atoll.ErrNotExist},
		{"tar", "missing", atoll.ErrNotExist},
		{"untar", "file", atoll.ErrAlreadyExists},
		{"untar", "new/dir", nil},
		{"watch", "missing", atoll.ErrNotExist},
		{"watch", "file", atoll.ErrInvalid},
	} {
		if err := ops[tt.op](tt.name); !errors.Is(err, tt.want) || err == nil != (tt.want == nil) {
			t.Errorf("%s %q: %v, want %v", tt.op, tt.name, err, tt.want)
		}
	}
	for op, do := range ops {
		for _, name := range []string{"..", "../outside/secret", "/etc/passwd", "/work/../outside/secret", "/workshop", "/"} {
			if op == "seek" {
				continue
			}
			if err := do(name); !errors.Is(err, atoll.ErrDenied) || !errors.Is(err, ErrEscapes) {
				t.Errorf("%s %q: %v, want ErrDenied and ErrEscapes", op, name, err)
			}
		}
	}
	ro, err := New("/work", dir, Options{UID: -1, GID: -1, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	f = ro
	for op, do := range ops {
		changes := slices.Contains([]string{"write", "mkdir", "rm", "rm -r", "mv", "mv to", "untar"}, op)
		if err := do("full"); errors.Is(err, atoll.ErrDenied) != changes {
			t.Errorf("%s on a read-only tree: %v", op, err)
		}
	}
	ro.Close()
	if err := ops["stat"]("file"); !errors.Is(err, atoll.ErrStopped) {
		t.Errorf("after Close: %v, want ErrStopped", err)
	}
}

// TestLinksDoNotLeadOut tries every operation through every kind of link.
func TestLinksDoNotLeadOut(t *testing.T) {
	for _, link := range []struct{ name, target string }{
		{"relative", "../outside"},
		{"absolute", "ABS"},
		{"dangling", "../outside/missing"},
		{"dangling absolute", "ABS/missing"},
		{"by a second link", "second"},
		{"up and down", "sub/../../outside"},
	} {
		t.Run(link.name, func(t *testing.T) {
			f, dir, outside := newTree(t)
			target := strings.Replace(link.target, "ABS", outside, 1)
			for name, to := range map[string]string{"link": target, "second": "../outside", "file": target + "/secret"} {
				if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			mustWrite(t, f, "sub/mine", "x", atoll.WriteOptions{})
			put := func(name string) error {
				_, err := f.Write(t.Context(), name, strings.NewReader("bad"), atoll.WriteOptions{})
				return err
			}
			for what, err := range map[string]error{
				"read file":        third(readAll(f, "file", 0)),
				"read below link":  third(readAll(f, "link/secret", 0)),
				"write file":       put("file"),
				"write link":       put("link"),
				"write below link": put("link/new"),
				"stat below link":  second(f.Stat(t.Context(), "link/secret")),
				"list link":        second(f.List(t.Context(), "link", true)),
				"mkdir below link": f.Mkdir(t.Context(), "link/new/dir", 0),
				"rm below link":    f.Remove(t.Context(), "link/secret", false),
				"rm -r below link": f.Remove(t.Context(), "link/secret", true),
				"mv from link":     f.Rename(t.Context(), "link/secret", "mine"),
				"mv to link":       f.Rename(t.Context(), "sub/mine", "link/theirs"),
				"tar link":         f.WriteTar(t.Context(), "link", io.Discard),
				"untar link":       f.ReadTar(t.Context(), "link", bytes.NewReader(make([]byte, 1024))),
				"watch link":       firstError(f, "link"),
			} {
				if !errors.Is(err, atoll.ErrDenied) || !errors.Is(err, ErrEscapes) {
					t.Errorf("%s: %v, want ErrDenied and ErrEscapes", what, err)
				}
			}
			if info, err := f.Stat(t.Context(), "link"); err != nil || info.Type != atoll.TypeSymlink || info.Target != target {
				t.Errorf("the link itself: %+v, %v", info, err)
			}
			if err := f.Remove(t.Context(), "link", true); err != nil {
				t.Errorf("removing the link itself: %v", err)
			}
			entries, err := os.ReadDir(outside)
			if err != nil || len(entries) != 1 {
				t.Errorf("outside are now %v, %v", entries, err)
			}
			if b, err := os.ReadFile(filepath.Join(outside, "secret")); string(b) != "secret" {
				t.Errorf("the secret is now %q, %v", b, err)
			}
		})
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T, U any](_ T, _ U, err error) error { return err }
func firstError(f *FS, name string) (failed error) {
	for _, failed = range f.Watch(context.Background(), name, true) {
		break
	}
	return failed
}

func TestLinksInside(t *testing.T) {
	f, dir, _ := newTree(t)
	mustWrite(t, f, "real/file", "content", atoll.WriteOptions{Mode: 0o600})
	links := map[string]string{
		"relative": "real", "absolute": "/work/real", "host": dir + "/real", "chain": "absolute", "up": "real/../absolute",
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name := range links {
		if got, info, err := readAll(f, name+"/file", 0); err != nil || got != "content" || info.Path != "/work/"+name+"/file" {
			t.Errorf("read through %s: %q, %+v, %v", name, got, info, err)
		}
		if list, err := f.List(t.Context(), name, true); err != nil || len(list) != 1 || list[0].Path != "/work/"+name+"/file" {
			t.Errorf("list through %s: %+v, %v", name, list, err)
		}
	}
	for _, target := range []string{"real/file", "/work/real/file"} {
		link := filepath.Join(dir, "link")
		os.Remove(link)
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, f, "link", "through "+target, atoll.WriteOptions{})
		if got, info, err := readAll(f, "real/file", 0); err != nil || got != "through "+target || info.Mode != 0o600 {
			t.Errorf("a write through a link to %s: %q, %o, %v", target, got, info.Mode, err)
		}
		if info, err := f.Stat(t.Context(), "link"); err != nil || info.Target != target {
			t.Errorf("the link was replaced: %+v, %v", info, err)
		}
	}
}

func TestListRenameRemove(t *testing.T) {
	f, _, _ := newTree(t)
	for _, name := range []string{"b/z", "b/a", "a-b", "a/x", "c"} {
		mustWrite(t, f, name, name, atoll.WriteOptions{})
	}
	paths := func(name string, recursive bool) string {
		list, err := f.List(t.Context(), name, recursive)
		if err != nil {
			t.Fatal(err)
		}
		var s []string
		for _, info := range list {
			s = append(s, strings.TrimPrefix(info.Path, "/work/"))
		}
		return strings.Join(s, " ")
	}
	if got, want := paths(".", false), "a a-b b c"; got != want {
		t.Errorf("List: %s, want %s", got, want)
	}
	if got, want := paths("/work", true), "a a-b a/x b b/a b/z c"; got != want {
		t.Errorf("recursive List: %s, want %s", got, want)
	}
	if err := f.Rename(t.Context(), "b", "d"); err != nil {
		t.Error(err)
	}
	if err := f.Rename(t.Context(), "c", "d/a"); err != nil {
		t.Error(err)
	}
	if got, _, err := readAll(f, "d/a", 0); got != "c" || err != nil {
		t.Errorf("renamed over: %q, %v", got, err)
	}
	if err := f.Remove(t.Context(), "d", true); err != nil {
		t.Error(err)
	}
	if err := f.Remove(t.Context(), "a-b", false); err != nil {
		t.Error(err)
	}
	if got, want := paths(".", true), "a a/x"; got != want {
		t.Errorf("at the end: %s, want %s", got, want)
	}
}

var oddNames = []string{"a b", "q'\"`$x", "new\nline", "-rf", "\xff\xfe", "...", "ünï", strings.Repeat("n", 255), " ", "*", "a|b", "con:"}

// A program that fills a directory cannot exhaust the memory of one that lists it.
func TestTooManyEntries(t *testing.T) {
	f, dir, _ := newTree(t)
	f.most.entries, f.maxNames = 10, 10*(1+nameSize+infoSize)
	fill := func(name string, n int) {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := os.WriteFile(filepath.Join(dir, name, fmt.Sprint(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	fill("a", 4)
	fill("a/b", 4)
	for range 2 {
		if list, err := f.List(t.Context(), "a", true); len(list) != 9 || err != nil {
			t.Errorf("List: %d entries, %v", len(list), err)
		}
		if err := f.WriteTar(t.Context(), "a", io.Discard); err != nil {
			t.Errorf("WriteTar: %v", err)
		}
		fill("full", 11)
	}
	for name, err := range map[string]error{
		"List":           second(f.List(t.Context(), "full", false)),
		"recursive List": second(f.List(t.Context(), ".", true)),
		"WriteTar":       f.WriteTar(t.Context(), ".", io.Discard),
	} {
		if !errors.Is(err, atoll.ErrExhausted) {
			t.Errorf("%s: %v, want ErrExhausted", name, err)
		}
	}
}

// Deep trees have long paths, and links may have any length.
func TestTooLongPaths(t *testing.T) {
	f, dir, _ := newTree(t)
	mustWrite(t, f, "deep/"+strings.Repeat("d/", 20)+"file", "x", atoll.WriteOptions{})
	if err := os.MkdirAll(filepath.Join(dir, "links"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(strings.Repeat("x", 1000), filepath.Join(dir, "links/link")); err != nil {
		t.Fatal(err)
	}
	f.most.bytes = 900 // 21 entries in deep, 31 bytes each
	for name, want := range map[string]atoll.Kind{"deep": "", "links": atoll.ErrExhausted, ".": atoll.ErrExhausted} {
		if list, err := f.List(t.Context(), name, true); atoll.KindOf(err) != want {
			t.Errorf("List(%q): %d entries, %v; want %q", name, len(list), err, want)
		}
	}
	if list, err := f.List(t.Context(), ".", false); len(list) != 2 || err != nil {
		t.Errorf("List of one directory: %+v, %v", list, err)
	}
}

// WriteTar holds the names of the directories on its path in memory, and those of
// files with several names.
func TestTooManyNames(t *testing.T) {
	f, dir, _ := newTree(t)
	for i := range 20 {
		name := fmt.Sprintf("all/%02d/", i)
		mustWrite(t, f, name+"a", "x", atoll.WriteOptions{})
		if err := os.Link(filepath.Join(dir, name, "a"), filepath.Join(dir, name, "b")); err != nil {
			t.Fatal(err)
		}
	}
	open := 20*(2+nameSize+infoSize) + 2*(1+nameSize+infoSize)
	links := 20 * (len("dd/a") + linkSize)
	for size, want := range map[int]atoll.Kind{open + links: "", open + links - 1: atoll.ErrExhausted, open: atoll.ErrExhausted, open - 1: atoll.ErrExhausted} {
		f.maxNames = size
		if err := f.WriteTar(t.Context(), "all", io.Discard); atoll.KindOf(err) != want {
			t.Errorf("%d bytes: %v, want %q", size, err, want)
		}
	}
}

func TestLargeDirectory(t *testing.T) {
	f, dir, _ := newTree(t)
	var want []string
	for i := range 2*batchSize + 1 {
		name := fmt.Sprintf("%06d", i)
		want = append(want, name)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := f.List(t.Context(), ".", false)
	var listed, packed []string
	for _, info := range list {
		listed = append(listed, info.Name)
	}
	if !slices.Equal(listed, want) || err != nil {
		t.Errorf("List: %d entries, %v, want %d", len(listed), err, len(want))
	}
	var b bytes.Buffer
	if err := f.WriteTar(t.Context(), ".", &b); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(&b)
	for h, err := r.Next(); err != io.EOF; h, err = r.Next() {
		if err != nil {
			t.Fatal(err)
		}
		if h.Name != "./" && h.Name != "." {
			packed = append(packed, h.Name)
		}
	}
	if !slices.Equal(packed, want) {
		t.Errorf("WriteTar: %d entries, or not in order; want %d", len(packed), len(want))
	}
}

func TestTarRoundTrip(t *testing.T) {
	f, dir, _ := newTree(t)
	for i, name := range oddNames {
		mustWrite(t, f, "src/"+name, fmt.Sprint(i), atoll.WriteOptions{Mode: 0o600 + uint32(i)})
		mustWrite(t, f, "src/dir/"+name+"/f", name, atoll.WriteOptions{})
	}
	if err := f.Mkdir(t.Context(), "src/empty", 0o1777); err != nil {
		t.Fatal(err)
	}
	if err := f.Mkdir(t.Context(), "src/sealed", 0o500); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"rel": "dir", "abs": "/etc/passwd", "dangling": "no\nwhere", "out": "../../.."} {
		if err := os.Symlink(target, filepath.Join(dir, "src", name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Link(filepath.Join(dir, "src/-rf"), filepath.Join(dir, "src/zz-hard")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "src/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := f.WriteTar(t.Context(), "src", &archive); err != nil {
		t.Fatal(err)
	}
	if err := f.ReadTar(t.Context(), "made/dst", bytes.NewReader(archive.Bytes())); err != nil {
		t.Fatal(err)
	}
	if want := []string{"left out: a named pipe: fifo"}; !slices.Equal(notesOf(t, archive.Bytes()), want) {
		t.Errorf("the archive has the notes %q, want %q", notesOf(t, archive.Bytes()), want)
	}
	if err := f.Remove(t.Context(), "src/fifo", false); err != nil { // is left out
		t.Fatal(err)
	}
	compareTrees(t, f, "src", "made/dst")
	if err := f.ReadTar(t.Context(), "made/dst", &archive); err != nil {
		t.Errorf("unpacking over what is there: %v", err)
	}
	compareTrees(t, f, "src", "made/dst")
	a, b := mustStat(t, filepath.Join(dir, "made/dst/-rf")), mustStat(t, filepath.Join(dir, "made/dst/zz-hard"))
	if !os.SameFile(a, b) {
		t.Error("the hard link became a copy")
	}
}

// notesOf returns the comments of global headers.
func notesOf(t *testing.T, archive []byte) (notes []string) {
	t.Helper()
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if err == io.EOF {
			return notes
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			notes = append(notes, h.PAXRecords["comment"])
		}
	}
}

func mustStat(t *testing.T, name string) fs.FileInfo {
	t.Helper()
	info, err := os.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

// compareTrees holds one tree to be like another, times included.
func compareTrees(t *testing.T, f *FS, a, b string) {
	t.Helper()
	as, err := f.List(t.Context(), a, true)
	if err != nil {
		t.Fatal(err)
	}
	bs, err := f.List(t.Context(), b, true)
	if err != nil || len(as) != len(bs) {
		t.Fatalf("%d entries, want %d: %v", len(bs), len(as), err)
	}
	for i, want := range as {
		got := bs[i]
		content := func(info atoll.FileInfo) string {
			s, _, _ := readAll(f, info.Path, 0)
			return s
		}
		if want.Type == atoll.TypeFile && content(got) != content(want) {
			t.Errorf("%s: %q, want %q", got.Path, content(got), content(want))
		}
		if !got.Modified.Equal(want.Modified) && want.Type != atoll.TypeSymlink {
			t.Errorf("%s: modified %v, want %v", got.Path, got.Modified, want.Modified)
		}
		got.Path, got.Modified = strings.Replace(got.Path, b, a, 1), want.Modified
		got.Changed, got.Inode = want.Changed, want.Inode
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestTarOfAFile(t *testing.T) {
	f, _, _ := newTree(t)
	mustWrite(t, f, "file", "content", atoll.WriteOptions{Mode: 0o640})
	var archive bytes.Buffer
	if err := f.WriteTar(t.Context(), "file", &archive); err != nil {
		t.Fatal(err)
	}
	r := tar.NewReader(&archive)
	h, err := r.Next()
	if err != nil || h.Name != "." || h.Typeflag != tar.TypeReg || h.Mode != 0o640 || h.Size != 7 {
		t.Errorf("entry %+v, %v", h, err)
	}
}

func archiveOf(t testing.TB, headers ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg {
			h.Size = 3
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, "bad"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func regularHeader(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}
func symlinkHeader(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
}
func hardLinkHeader(name, to string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
}

// evilArchives are archives that try to get out of their directory.
func evilArchives(t testing.TB) map[string][]byte {
	after := regularHeader("after")
	return map[string][]byte{
		"dot dot":                archiveOf(t, regularHeader("../outside/bad"), after),
		"dot dot further in":     archiveOf(t, regularHeader("a/../../bad"), after),
		"absolute":               archiveOf(t, regularHeader("/etc/bad"), after),
		"just dot dot":           archiveOf(t, &tar.Header{Typeflag: tar.TypeDir, Name: "..", Mode: 0o777}, after),
		"through a link":         archiveOf(t, symlinkHeader("l", "../outside"), regularHeader("l/bad"), after),
		"through links":          archiveOf(t, symlinkHeader("l", "m"), symlinkHeader("m", "../outside"), regularHeader("l/bad"), after),
		"through absolute link":  archiveOf(t, symlinkHeader("l", "/tmp"), regularHeader("l/bad"), after),
		"within the tree":        archiveOf(t, symlinkHeader("l", ".."), regularHeader("l/bad"), after),
		"directory in a link":    archiveOf(t, symlinkHeader("l", "../outside"), &tar.Header{Typeflag: tar.TypeDir, Name: "l/bad", Mode: 0o777}, after),
		"link in a link":         archiveOf(t, symlinkHeader("l", "../outside"), symlinkHeader("l/bad", "x"), after),
		"hard link up":           archiveOf(t, hardLinkHeader("bad", "../outside/secret"), after),
		"hard link absolute":     archiveOf(t, hardLinkHeader("bad", "/etc/passwd"), after),
		"hard link through link": archiveOf(t, symlinkHeader("l", "../outside"), hardLinkHeader("bad", "l/secret"), after),
		"device":                 archiveOf(t, &tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, after),
		"pipe":                   archiveOf(t, &tar.Header{Typeflag: tar.TypeFifo, Name: "pipe"}, after),
		"empty name":             archiveOf(t, regularHeader(""), after),
		"itself a file":          archiveOf(t, regularHeader("."), after),
		"garbage":                append(archiveOf(t, regularHeader("x"))[:1024:1024], bytes.Repeat([]byte("garbage!"), 128)...),
		"cut off":                archiveOf(t, regularHeader("x"))[:513],
	}
}

func TestEvilArchives(t *testing.T) {
	for name, archive := range evilArchives(t) {
		t.Run(name, func(t *testing.T) {
			f, dir, outside := newTree(t)
			err := f.ReadTar(t.Context(), "dst", bytes.NewReader(archive))
			if !errors.Is(err, atoll.ErrInvalid) {
				t.Errorf("ReadTar: %v, want ErrInvalid", err)
			}
			checkUnharmed(t, dir, outside)
			if _, err := os.Lstat(filepath.Join(dir, "dst/after")); err == nil {
				t.Error("what came after was unpacked")
			}
		})
	}
}

func checkUnharmed(t *testing.T, dir, outside string) {
	t.Helper()
	if b, err := os.ReadFile(filepath.Join(outside, "secret")); string(b) != "secret" {
		t.Errorf("the secret is now %q, %v", b, err)
	}
	for d, want := range map[string][]string{outside: {"secret"}, dir: {"dst"}, filepath.Dir(dir): {"outside", "work"}} {
		entries, err := os.ReadDir(d)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%s holds %q, want %q: %v", d, names, want, err)
		}
	}
}

func TestUnpackOverALink(t *testing.T) {
	f, dir, outside := newTree(t)
	archive := archiveOf(t, symlinkHeader("l", "../../outside/secret"), regularHeader("l"), symlinkHeader("d", "../../outside"),
		&tar.Header{Typeflag: tar.TypeDir, Name: "d", Mode: 0o755}, regularHeader("d/x"))
	if err := f.ReadTar(t.Context(), "dst", bytes.NewReader(archive)); err != nil {
		t.Error(err)
	}
	checkUnharmed(t, dir, outside)
	if got, _, err := readAll(f, "dst/d/x", 0); got != "bad" || err != nil {
		t.Errorf("d/x is %q, %v", got, err)
	}
}

func FuzzReadTar(f *testing.F) {
	for _, archive := range evilArchives(f) {
		f.Add(archive)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		tree, dir, outside := newTree(t)
		if err := tree.ReadTar(t.Context(), "dst", bytes.NewReader(archive)); err == nil {
			if err := tree.WriteTar(t.Context(), "dst", io.Discard); err != nil && !errors.Is(err, atoll.ErrDenied) {
				t.Errorf("what was unpacked cannot be packed: %v", err)
			}
		}
		checkUnharmed(t, dir, outside)
	})
}

func TestSpecialBitsAndOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives files away")
	}
	dir := t.TempDir()
	f, err := New("/work", dir, Options{UID: 1234, GID: 2345})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info := mustWrite(t, f, "a/b", "x", atoll.WriteOptions{Mode: 0o6755}); info.UID != 1234 || info.GID != 2345 || info.Mode != 0o755 {
		t.Errorf("made %+v", info)
	}
	if info, err := f.Stat(t.Context(), "a"); err != nil || info.UID != 1234 || info.Mode != 0o755 {
		t.Errorf("parent %+v, %v", info, err)
	}
	if err := os.Chown(filepath.Join(dir, "a/b"), 77, 88); err != nil {
		t.Fatal(err)
	}
	if info := mustWrite(t, f, "a/b", "y", atoll.WriteOptions{}); info.UID != 77 || info.GID != 88 {
		t.Errorf("replacing a file gave it away: %+v", info)
	}
	archive := archiveOf(t, &tar.Header{Typeflag: tar.TypeReg, Name: "s", Mode: 0o6755, Uid: 9, Gid: 9})
	if err := f.ReadTar(t.Context(), ".", bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if info, err := f.Stat(t.Context(), "s"); err != nil || info.Mode != 0o755 || info.UID != 1234 {
		t.Errorf("unpacked %+v, %v", info, err)
	}
	sys := System(leave)
	if err := sys.ReadTar(t.Context(), dir, bytes.NewReader(archive)); err != nil {
		t.Fatal(err)
	}
	if info, err := sys.Stat(t.Context(), filepath.Join(dir, "s")); err != nil || info.Mode != 0o6755 || info.UID != 0 {
		t.Errorf("unpacked by System %+v, %v", info, err)
	}
}

func TestSystem(t *testing.T) {
	dir := t.TempDir()
	f := System(Options{UID: -1, GID: -1, Workdir: dir})
	mustWrite(t, f, "x/y", "content", atoll.WriteOptions{})
	if err := os.Symlink(dir+"/x", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if got, _, err := readAll(f, dir+"/link/y", 0); got != "content" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	if err := os.Symlink(dir+"/new", dir+"/dangling"); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, f, "dangling", "made", atoll.WriteOptions{})
	if b, err := os.ReadFile(dir + "/new"); string(b) != "made" {
		t.Errorf("a write through a dangling link: %q, %v", b, err)
	}
	list, err := f.List(t.Context(), ".", false)
	if err != nil || len(list) != 4 || list[0].Path != dir+"/dangling" {
		t.Errorf("List: %+v, %v", list, err)
	}
	err = f.ReadTar(t.Context(), "dst", bytes.NewReader(archiveOf(t, symlinkHeader("l", "/"), regularHeader("l/atoll-bad"))))
	if !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("ReadTar through a link: %v, want ErrInvalid", err)
	}
	if err := f.Remove(t.Context(), "/", true); !errors.Is(err, atoll.ErrInvalid) {
		t.Errorf("Remove /: %v, want ErrInvalid", err)
	}
}

func BenchmarkList10k(b *testing.B) {
	dir := b.TempDir()
	for i := range 10000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint("file", i)), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	f, err := New("/work", dir, leave)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	for b.Loop() {
		if list, err := f.List(b.Context(), ".", true); err != nil || len(list) != 10000 {
			b.Fatal(len(list), err)
		}
	}
}

func BenchmarkWrite64MiB(b *testing.B) {
	f, err := New("/work", b.TempDir(), leave)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 64<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := f.Write(b.Context(), "x", struct{ io.Reader }{bytes.NewReader(data)}, atoll.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
