package providertest_test

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/seed46cd37a8/atoll"
)

// editMutants break the promises about files that are changed in place.
var editMutants = []mutant{
	newMutant("replaces files that are open", "edit/an open file is the file itself, whatever becomes of its name", withFiles(func(fs atoll.FS) atoll.FS {
		return replacingFS{plainFS{fs, fs.(atoll.Editor)}}
	})),
	newMutant("does not append", "edit/writes of several openers and processes meet in one file", withFiles(func(fs atoll.FS) atoll.FS {
		return overwritingFS{plainFS{fs, fs.(atoll.Editor)}}
	})),
	newMutant("changes no times", "edit/ChangeFile changes size, mode, times and owner, of links too", withFiles(func(fs atoll.FS) atoll.FS {
		return timelessFS{plainFS{fs, fs.(atoll.Editor)}}
	})),
	newMutant("has files that nobody can open", "caps/each optional ability works exactly if its cap is set", withFiles(func(fs atoll.FS) atoll.FS {
		return struct{ atoll.FS }{fs}
	})),
}

// withFiles returns a function that opens a mock whose files change replaces.
func withFiles(change func(fs atoll.FS) atoll.FS) func(*testing.T) atoll.Provider {
	return onMockSandboxes(func(sb atoll.Sandbox) atoll.Sandbox { return filesSandbox{atoll.SandboxLayer{Sandbox: sb}, change} })
}

type filesSandbox struct {
	atoll.SandboxLayer
	change func(fs atoll.FS) atoll.FS
}

func (s filesSandbox) Files() atoll.FS { return s.change(atoll.Files(s.Sandbox)) }

// A plainFS passes all calls on.
type plainFS struct {
	atoll.FS
	atoll.Editor
}

// A replacingFS opens files that are stored under their name as a whole.
type replacingFS struct{ plainFS }

func (f replacingFS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	file, err := f.Editor.Open(ctx, name, opts)
	return replacingFile{file, f.FS, name}, err
}

type replacingFile struct {
	atoll.File
	fs   atoll.FS
	name string
}

func (f replacingFile) WriteAt(ctx context.Context, p []byte, offset int64) (int, error) {
	r, _, err := f.fs.Read(ctx, f.name, 0)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	old, err := io.ReadAll(r)
	if err != nil {
		return 0, err
	}
	content := string(old[:min(offset, int64(len(old)))]) + string(p)
	if len(old) > len(content) {
		content += string(old[len(content):])
	}
	_, err = f.fs.Write(ctx, f.name, strings.NewReader(content), atoll.WriteOptions{})
	return len(p), err
}

// An overwritingFS ignores OpenOptions.Append.
type overwritingFS struct{ plainFS }

func (f overwritingFS) Open(ctx context.Context, name string, opts atoll.OpenOptions) (atoll.File, error) {
	opts.Append = false
	return f.Editor.Open(ctx, name, opts)
}

// A timelessFS changes no times.
type timelessFS struct{ plainFS }

func (f timelessFS) Change(ctx context.Context, name string, change atoll.FileChange) error {
	change.Times = nil
	return f.Editor.Change(ctx, name, change)
}
