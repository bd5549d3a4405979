//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// makeInputs makes the inputs of all workloads in a new directory. They are the same in each run.
func makeInputs(ctx context.Context, dir string) error {
	random := rand.New(rand.NewPCG(1, 2))
	if err := os.MkdirAll(filepath.Join(dir, "npm"), 0o755); err != nil {
		return err
	}
	return errors.Join(
		makePackages(filepath.Join(dir, "npm"), random),
		writeTar(filepath.Join(dir, "small.tar"), 10_000, 2<<10, random),
		writeTar(filepath.Join(dir, "many.tar"), 50_000, 1<<10, random),
		makeRepository(ctx, filepath.Join(dir, "repository")),
		os.WriteFile(filepath.Join(dir, "inserts.sql"), writeInserts(), 0o644),
		os.WriteFile(filepath.Join(dir, "program.go"), []byte(program), 0o644),
	)
}

// program needs about 60 packages of Go's standard library.
const program = `package main

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"regexp"
	"text/template"
)

func main() { fmt.Println(tar.ErrHeader, json.Valid, regexp.Compile, template.New) }
`

// A packedFile is a file of an archive.
type packedFile struct {
	name string
	data []byte
}

// packFiles returns a tar archive.
func packFiles(files []packedFile) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: 0o644, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// randomText returns about n bytes of words. One text of a hundred contains "needle".
func randomText(random *rand.Rand, n int) []byte {
	var b bytes.Buffer
	if random.IntN(100) == 0 {
		b.WriteString("needle\n")
	}
	for b.Len() < n {
		fmt.Fprintf(&b, "%x ", random.Uint32())
		if random.IntN(10) == 0 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}

// writeTar writes an archive of n files of about size bytes, 50 in a directory.
func writeTar(path string, n, size int, random *rand.Rand) error {
	var files []packedFile
	for i := range n {
		files = append(files, packedFile{fmt.Sprintf("d%03d/e%d/file%d.txt", i/500, i/50%10, i), randomText(random, size)})
	}
	data, err := packFiles(files)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o644)
}

// makePackages makes 300 packages for npm with 20 files each, and a project that needs them all. "INPUTS"
// in its files stands for the directory of all inputs.
func makePackages(dir string, random *rand.Rand) error {
	type entry struct {
		Name         string            `json:"name,omitempty"`
		Version      string            `json:"version"`
		Resolved     string            `json:"resolved,omitempty"`
		Integrity    string            `json:"integrity,omitempty"`
		Dependencies map[string]string `json:"dependencies,omitempty"`
	}
	root := entry{Name: "project", Version: "1.0.0", Dependencies: map[string]string{}}
	packages := map[string]entry{}
	for i := range 300 {
		name := fmt.Sprintf("part-%d", i)
		files := []packedFile{{"package/package.json", fmt.Appendf(nil, `{"name":%q,"version":"1.0.0"}`, name)}}
		for j := range 20 {
			files = append(files, packedFile{fmt.Sprintf("package/lib/m%d/index.js", j), randomText(random, 2<<10)})
		}
		data, err := packFiles(files)
		if err != nil {
			return err
		}
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, err = w.Write(data)
		if err = errors.Join(err, w.Close(), os.WriteFile(filepath.Join(dir, name+".tgz"), packed.Bytes(), 0o644)); err != nil {
			return err
		}
		sum := sha512.Sum512(packed.Bytes())
		where := "file:INPUTS/npm/" + name + ".tgz"
		root.Dependencies[name] = where
		packages["node_modules/"+name] = entry{Version: "1.0.0", Resolved: where, Integrity: "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}
	}
	packages[""] = root
	for name, v := range map[string]any{
		"package.json":      root,
		"package-lock.json": map[string]any{"name": root.Name, "version": root.Version, "lockfileVersion": 3, "requires": true, "packages": packages},
	} {
		data, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// makeRepository makes a Git repository with 100 MB in 2,000 files, which do not compress.
func makeRepository(ctx context.Context, dir string) error {
	random := rand.NewChaCha8([32]byte{})
	data := make([]byte, 50_000)
	for i := range 2000 {
		path := filepath.Join(dir, fmt.Sprintf("d%d", i/50), fmt.Sprintf("blob%d", i))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		_, _ = random.Read(data) // never fails
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return err
		}
	}
	for _, args := range []string{"init -q", "add .", "-c user.name=bench -c user.email=bench@example.com commit -q -m files", "gc -q"} {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, strings.Fields(args)...)...)
		if _, err := untilEnd(cmd); err != nil {
			return fmt.Errorf("%s: %w", cmd, err)
		}
	}
	return nil
}

// writeInserts returns SQL statements: 100 inserts in each of 1,000 transactions.
func writeInserts() []byte {
	var b bytes.Buffer
	b.WriteString("CREATE TABLE numbers (id INTEGER PRIMARY KEY, name TEXT, value REAL);\n")
	for i := range 1000 {
		b.WriteString("BEGIN;\n")
		for j := range 100 {
			fmt.Fprintf(&b, "INSERT INTO numbers VALUES (%d, 'name of %[1]d', %d.5);\n", i*100+j, j)
		}
		b.WriteString("COMMIT;\n")
	}
	return b.Bytes()
}
