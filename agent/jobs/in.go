package jobs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
)

// In runs a job in a sandbox that is there, which has what the job's Spec says, and which
// nobody else uses. It is what a Backend's Run does inside of its container. Kinds:
// as of Backend.Run.
func In(ctx context.Context, sb atoll.Sandbox, job *Job) (*Result, error) {
	for _, f := range job.Files {
		if err := atoll.WriteFile(ctx, sb, f.Name, f.Data, 0); err != nil {
			return nil, err
		}
	}
	if len(job.Install) > 0 {
		ran, err := Run(ctx, sb, &atoll.Command{Args: job.Install, Timeout: job.Timeout}, job.MaxOutput, job.Report)
		if err != nil {
			return nil, err
		}
		if !ran.Exit.Success() {
			return &Result{Ran: ran, NotInstalled: true}, nil
		}
	}
	before, err := listing(ctx, sb)
	if err != nil {
		return nil, err
	}
	cmd := &atoll.Command{Args: slices.Clone(job.Args), Env: job.Env, Timeout: job.Timeout}
	ran, err := Run(ctx, sb, cmd, job.MaxOutput, job.Report)
	if job.Else != "" && errors.Is(err, atoll.ErrCommandNotFound) {
		cmd.Args[0] = job.Else
		ran, err = Run(ctx, sb, cmd, job.MaxOutput, job.Report)
	}
	if err != nil {
		return nil, err
	}
	result := &Result{Ran: ran}
	if err := result.collect(ctx, sb, job, before); err != nil { // it has run, and that counts
		if ctx.Err() != nil {
			return nil, err
		}
		result.Unread = err.Error()
	}
	return result, nil
}

// listing is what is in the work directory.
func listing(ctx context.Context, sb atoll.Sandbox) (map[string]atoll.FileInfo, error) {
	all, err := atoll.Files(sb).List(ctx, ".", true)
	if err != nil {
		return nil, err
	}
	byPath := map[string]atoll.FileInfo{}
	for _, f := range all {
		byPath[f.Path] = f
	}
	return byPath, nil
}

// collect adds the files that are not as they were.
func (r *Result) collect(ctx context.Context, sb atoll.Sandbox, job *Job, before map[string]atoll.FileInfo) error {
	after, err := listing(ctx, sb)
	if err != nil {
		return err
	}
	workdir := path.Clean(cmp.Or(job.Spec.Workdir, atoll.DefaultWorkdir))
	room := job.MaxContent
	for _, name := range slices.Sorted(maps.Keys(after)) {
		f := after[name]
		if old, ok := before[name]; f.Type != atoll.TypeFile || ok && old.Size == f.Size && old.Modified.Equal(f.Modified) || cached(name) {
			continue
		}
		if len(r.Artifacts) == job.MaxFiles {
			r.More = true
			return nil
		}
		a := Artifact{Path: strings.TrimPrefix(name, workdir+"/"), Size: f.Size}
		if f.Size <= min(room, job.MaxFileSize) {
			a.Data, err = read(ctx, sb, name, f.Size)
			if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrInvalid {
				continue // something that it has left behind goes on
			}
			if err != nil {
				return err
			}
			a.Read = true
			room -= int64(len(a.Data))
		}
		r.Artifacts = append(r.Artifacts, a)
	}
	return nil
}

// read reads most bytes of a file, and no more.
func read(ctx context.Context, sb atoll.Sandbox, name string, most int64) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx) // what is not read is not waited for
	defer cancel()
	r, _, err := atoll.Files(sb).Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most))
}

// cached reports whether a file is what a runtime keeps for itself.
func cached(name string) bool {
	return strings.Contains(name, "/__pycache__/") || strings.Contains(name, "/node_modules/")
}
