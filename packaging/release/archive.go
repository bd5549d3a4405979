package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// A file is one file of an archive: the content, or the path of the content.
type file struct {
	name       string
	data       []byte
	path       string // if it is not "", data is not used
	executable bool
}

// fileMode returns the permissions of the file.
func (f file) fileMode() os.FileMode {
	if f.executable {
		return 0o755
	}
	return 0o644
}

// readContent returns the content of the file.
func (f file) readContent() ([]byte, error) {
	if f.path == "" {
		return f.data, nil
	}
	return os.ReadFile(f.path)
}

// shells are the shells with completions, and the name that each expects of their file.
var shells = []struct{ name, file string }{{"bash", "atoll"}, {"zsh", "_atoll"}, {"fish", "atoll.fish"}}

// addExtras sets what every archive has beside the programs: licence, README, completions, and the man pages of a directory.
func (r *release) addExtras(ctx context.Context, man string) error {
	for _, name := range []string{"LICENSE", "README.md"} {
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		r.extras = append(r.extras, file{name: name, data: data})
	}
	for _, shell := range shells {
		cmd := exec.CommandContext(ctx, r.hostProgram("atoll"), "completion", shell.name)
		cmd.Stderr = os.Stderr
		script, err := cmd.Output()
		if err != nil {
			return fmt.Errorf("write completions for %s: %w", shell.name, err)
		}
		r.extras = append(r.extras, file{name: "completions/" + shell.name + "/" + shell.file, data: script})
	}
	if man == "" {
		return nil
	}
	pages, err := filepath.Glob(filepath.Join(man, "*.1"))
	if err != nil || len(pages) == 0 {
		return fmt.Errorf("no man pages in %s: run make man first: %w", man, err)
	}
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		r.extras = append(r.extras, file{name: "man/" + filepath.Base(page), data: data})
	}
	return nil
}

// hostProgram returns the path of a program that runs on this machine.
func (r *release) hostProgram(name string) string {
	i := slices.IndexFunc(r.built, func(b build) bool { return b.OS == runtime.GOOS && b.Arch == runtime.GOARCH })
	return r.built[i].paths[name]
}

// writeArchives writes an archive for each platform: its programs and the extras, in a directory with the archive's name.
func (r *release) writeArchives(context.Context) error {
	for _, b := range r.built {
		name := r.archiveName(b)
		write := writeTarGz
		if b.OS == "windows" {
			write = writeZip
		}
		files := append(b.programFiles(""), r.extras...)
		dir := strings.TrimSuffix(strings.TrimSuffix(name, ".zip"), ".tar.gz")
		for i := range files {
			files[i].name = path.Join(dir, files[i].name)
		}
		if err := r.createFile(name, func(w io.Writer) error { return write(w, r.time, files) }); err != nil {
			return err
		}
	}
	return nil
}

// archiveName returns the name of the archive for a platform.
func (r *release) archiveName(b build) string {
	kind := ".tar.gz"
	if b.OS == "windows" {
		kind = ".zip"
	}
	return fmt.Sprintf("atoll_%s_%s_%s%s", r.version, b.OS, b.Arch, kind)
}

// programFiles returns the programs of b as files of a directory.
func (b build) programFiles(dir string) []file {
	var all []file
	for _, name := range programNames(b.Platform) {
		all = append(all, file{name: path.Join(dir, b.FileName(name)), path: b.paths[name], executable: true})
	}
	return all
}

// mainFiles returns the programs of b that every user needs, as files of a directory.
func (b build) mainFiles(dir string) []file {
	all := b.programFiles(dir)
	if b.HasClient() {
		return all[:2]
	}
	return all[:1]
}

// createFile writes a file of the release.
func (r *release) createFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(filepath.Join(r.dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return f.Close()
}

// writeTarGz writes files as a compressed tar archive. They belong to root and have one time.
func writeTarGz(w io.Writer, at time.Time, files []file) error {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	for _, f := range files {
		data, err := f.readContent()
		if err != nil {
			return err
		}
		h := &tar.Header{Name: f.name, Mode: int64(f.fileMode()), Size: int64(len(data)), ModTime: at, Uname: "root", Gname: "root", Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(h); err != nil {
			return err
		}
		if _, err := archive.Write(data); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return packed.Close()
}

// writeZip writes files as a zip archive with one time.
func writeZip(w io.Writer, at time.Time, files []file) error {
	archive := zip.NewWriter(w)
	archive.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.DefaultCompression) })
	for _, f := range files {
		data, err := f.readContent()
		if err != nil {
			return err
		}
		h := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: at}
		h.SetMode(f.fileMode())
		part, err := archive.CreateHeader(h)
		if err != nil {
			return err
		}
		if _, err := part.Write(data); err != nil {
			return err
		}
	}
	return archive.Close()
}

// checksums is the name of the file with the SHA-256 of all others, as sha256sum writes and checks it.
const checksums = "checksums.txt"

// writeChecksums writes the checksums of all files in r.dir. It must be the last step.
func (r *release) writeChecksums(context.Context) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil {
		return err
	}
	var list bytes.Buffer
	for _, e := range entries {
		sum, err := r.sumFile(e.Name())
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, e.Name())
	}
	return os.WriteFile(filepath.Join(r.dir, checksums), list.Bytes(), 0o644)
}

// sumFile returns the SHA-256 of a file of the release, in hexadecimal.
func (r *release) sumFile(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(r.dir, name))
	return fmt.Sprintf("%x", sha256.Sum256(data)), err
}
