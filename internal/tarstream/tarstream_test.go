package tarstream

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// sample returns a stream of files with and without holes.
func sample(t *testing.T) (stream []byte, want map[string]string) {
	t.Helper()
	want = map[string]string{}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, data := range map[string][]Extent{
		"all":  {},
		"mid":  {{64 << 10, 512}, {200 << 10, 4096}},
		"tail": {{300 << 10, 7}},
		"GNU_sparse.minor GNU_sparse.realsize" + strings.Repeat("long", 50): {{0, 512}},
	} {
		content := make([]byte, 300<<10+7)
		for _, e := range data {
			copy(content[e.Offset:e.Offset+e.Length], bytes.Repeat([]byte(name[:1]), int(e.Length)))
		}
		want[name] = string(content)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o640, Size: int64(len(content))}
		if err := WriteSparse(&out, h, data, ReadExtents(bytes.NewReader(content), data)); err != nil {
			t.Fatal(err)
		}
		plain := &tar.Header{Typeflag: tar.TypeReg, Name: name + ".txt", Mode: 0o600, Size: 5, Format: tar.FormatPAX}
		want[plain.Name] = "plain"
		if err := w.WriteHeader(plain); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, "plain")
		if err := w.WriteHeader(NewNote("a: b", "a pipe")); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), want
}

// unpackStream returns the content of files as f returns it.
func unpackStream(t *testing.T, stream io.Reader, f func(h *Header, r io.Reader) []byte) map[string]string {
	t.Helper()
	got := map[string]string{}
	for r := NewReader(stream); ; {
		h, err := r.Next()
		if err == io.EOF {
			return got
		}
		if err != nil {
			t.Fatal(err)
		}
		if name, what, ok := ParseNote(h.Header); ok {
			if name != "a: b" || what != "a pipe" {
				t.Errorf("note: %q, %q", name, what)
			}
			continue
		}
		got[h.Name] = string(f(h, r))
	}
}

func compareFiles(t *testing.T, what string, got, want map[string]string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d files, want %d", what, len(got), len(want))
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %.20s has %d bytes, which differ from the %d bytes written", what, name, len(got[name]), len(want[name]))
		}
	}
}

// What WriteSparse writes, this package reads with its holes, and others read as a whole.
func TestSparse(t *testing.T) {
	stream, want := sample(t)
	if len(stream) > 64<<10 {
		t.Errorf("the stream has %d bytes", len(stream))
	}
	compareFiles(t, "Reader", unpackStream(t, bytes.NewReader(stream), func(h *Header, r io.Reader) []byte {
		name := filepath.Join(t.TempDir(), "file")
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := h.WriteFile(file, r, make([]byte, 1<<10)); err != nil {
			t.Fatal(err)
		}
		data, whole, err := FindExtents(t.Context(), file, h.Size)
		if err != nil || whole != !h.Sparse {
			t.Errorf("%s: extents %v, whole %v, %v", h.Name, data, whole, err)
		}
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		return content
	}), want)
	compareFiles(t, "Reader that skips", unpackStream(t, bytes.NewReader(stream), func(h *Header, r io.Reader) []byte {
		return []byte(want[h.Name])
	}), want)

	got := map[string]string{}
	for r := tar.NewReader(bytes.NewReader(stream)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			got[h.Name] = string(content)
		}
	}
	compareFiles(t, "archive/tar", got, want)

	for n := len(stream) - 1024; n > 0; n -= 2999 { // cut off
		r := NewReader(bytes.NewReader(stream[:n]))
		for {
			_, err := r.Next()
			if err == nil {
				_, err = io.Copy(io.Discard, r)
			}
			if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				t.Fatalf("cut off after %d bytes: %v", n, err)
			}
		}
	}
}

// GNU tar unpacks what WriteSparse writes, and its own streams of all formats are read with holes.
func TestGNUTar(t *testing.T) {
	gnu, err := exec.LookPath("tar")
	if err != nil {
		t.Skip("no tar")
	}
	if version, err := exec.Command(gnu, "--version").Output(); err != nil || !bytes.Contains(version, []byte("GNU tar")) {
		t.Skip("tar is not GNU's")
	}
	stream, want := sample(t)
	dir := t.TempDir()
	cmd := exec.Command(gnu, "xf", "-")
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(stream)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("tar: %v: %s", err, out)
	}
	got := map[string]string{}
	for name := range want {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(content)
	}
	compareFiles(t, "GNU tar", got, want)

	for _, format := range [][]string{{"--format=gnu"}, {"--format=pax"}, {"--format=pax", "--sparse-version=0.0"}, {"--format=pax", "--sparse-version=0.1"}} {
		args := slices.Concat([]string{"cS"}, format, []string{"-f", "-", "--", "all", "mid", "tail", "mid.txt"})
		cmd := exec.Command(gnu, args...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		some := map[string]string{"all": want["all"], "mid": want["mid"], "tail": want["tail"], "mid.txt": "plain"}
		compareFiles(t, strings.Join(format, " "), unpackStream(t, bytes.NewReader(out), func(h *Header, r io.Reader) []byte {
			if h.Sparse != (h.Name != "mid.txt") {
				t.Errorf("%v: %s: has holes: %v", format, h.Name, h.Sparse)
			}
			file, err := os.Create(filepath.Join(t.TempDir(), "file"))
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			if err := h.WriteFile(file, r, make([]byte, 64<<10)); err != nil {
				t.Fatal(err)
			}
			content, err := os.ReadFile(file.Name())
			if err != nil {
				t.Fatal(err)
			}
			return content
		}), some)
	}
}

func TestLimitExtents(t *testing.T) {
	var data []Extent
	for i := range int64(1000) {
		data = append(data, Extent{i * i << 16, 512})
	}
	got := limitExtents(slices.Clone(data), 100)
	if len(got) > 100 {
		t.Errorf("%d extents", len(got))
	}
	for _, e := range data {
		if !slices.ContainsFunc(got, func(g Extent) bool { return g.Offset <= e.Offset && e.Offset+e.Length <= g.Offset+g.Length }) {
			t.Errorf("%v is not covered", e)
		}
	}
}

// newBlock returns a header in GNU's format, with these changes.
func newBlock(t *testing.T, size int64, change func(b []byte)) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := tar.NewWriter(&out).WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "x", Size: size, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	b := out.Bytes()
	change(b)
	sum := 0
	copy(b[148:156], "        ")
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// The headers of an entry take a bounded amount of memory.
func TestManyHeaders(t *testing.T) {
	block := func(kind byte, size int64) []byte {
		return newBlock(t, size, func(b []byte) { b[156] = kind })
	}
	const size = 512 << 10
	header := slices.Concat(block(tar.TypeGNULongName, size), bytes.Repeat([]byte("n"), size))
	for _, n := range []int{4, 100} {
		parts := []io.Reader{}
		for range n {
			parts = append(parts, bytes.NewReader(header))
		}
		parts = append(parts, bytes.NewReader(block(tar.TypeReg, 0)), bytes.NewReader(make([]byte, 2*blockSize)))
		count := &countReader{r: io.MultiReader(parts...)}
		_, err := NewReader(count).Next()
		if n == 4 && err != nil {
			t.Errorf("%d headers: %v", n, err)
		}
		if n == 100 && (!errors.Is(err, tar.ErrHeader) || count.n > 6<<20) {
			t.Errorf("%d headers: %v after %d bytes", n, err, count.n)
		}
	}
}

type countReader struct {
	r io.Reader
	n int
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += n
	return n, err
}

// A Reader skips and refuses a file of a few bytes of data and 4 EiB of zeros.
func TestManyZeros(t *testing.T) {
	const size = 1 << 62
	for stored := range 3 {
		old := newBlock(t, int64(stored), func(b []byte) {
			b[156] = tar.TypeGNUSparse
			copy(b[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, stored)) // the first extent
			copy(b[483:], "\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00")
		})
		stream, _ := sample(t)
		stream = slices.Concat(old, make([]byte, stored+int(padding(int64(stored)))), stream)
		for read := range stored + 1 {
			r := NewReader(bytes.NewReader(stream))
			h, err := r.Next()
			if err != nil || h.Size != size || !h.Sparse {
				t.Fatalf("%+v, %v", h, err)
			}
			if _, err := io.ReadFull(r, make([]byte, read)); err != nil {
				t.Fatal(err)
			}
			if h, err = r.Next(); err != nil || h.Size != 300<<10+7 {
				t.Fatalf("behind %d bytes, of which %d were read: %+v, %v", stored, read, h, err)
			}
		}
		r := NewReader(bytes.NewReader(stream))
		h, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		file, err := os.Create(filepath.Join(t.TempDir(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := h.WriteFile(file, r, make([]byte, 64<<10)); !errors.Is(err, tar.ErrHeader) {
			t.Errorf("written: %v", err)
		}
	}
}
