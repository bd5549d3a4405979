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

// In runs a job in an existing sandbox that fulfils the job's Spec and that nobody else
// uses. Backends call it inside their containers. Kinds: those of Backend.Run.
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
	before, err := listFiles(ctx, sb)
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
	if err := result.collectArtifacts(ctx, sb, job, before); err != nil { // the program has run, so it has a result
		if ctx.Err() != nil {
			return nil, err
		}
		result.Unread = err.Error()
	}
	return result, nil
}

// listFiles returns the files in the work directory by path.
func listFiles(ctx context.Context, sb atoll.Sandbox) (map[string]atoll.FileInfo, error) {
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

// collectArtifacts adds the files that are new or have changed.
func (r *Result) collectArtifacts(ctx context.Context, sb atoll.Sandbox, job *Job, before map[string]atoll.FileInfo) error {
	after, err := listFiles(ctx, sb)
	if err != nil {
		return err
	}
	workdir := path.Clean(cmp.Or(job.Spec.Workdir, atoll.DefaultWorkdir))
	room := job.MaxContent
	for _, name := range slices.Sorted(maps.Keys(after)) {
		f := after[name]
		if old, ok := before[name]; f.Type != atoll.TypeFile || ok && old.Size == f.Size && old.Modified.Equal(f.Modified) || isCache(name) {
			continue
		}
		if len(r.Artifacts) == job.MaxFiles {
			r.More = true
			return nil
		}
		a := Artifact{Path: strings.TrimPrefix(name, workdir+"/"), Size: f.Size}
		if f.Size <= min(room, job.MaxFileSize) {
			a.Data, err = readFile(ctx, sb, name, f.Size)
			if k := atoll.KindOf(err); k == atoll.ErrNotExist || k == atoll.ErrInvalid {
				continue // a process left behind has changed it
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

// readFile reads up to most bytes of a file.
func readFile(ctx context.Context, sb atoll.Sandbox, name string, most int64) ([]byte, error) {
	ctx, cancel := context.WithCancel(ctx) // don't wait for the rest
	defer cancel()
	r, _, err := atoll.Files(sb).Read(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, most))
}

// isCache reports whether a file belongs to a runtime's cache.
func isCache(name string) bool {
	return strings.Contains(name, "/__pycache__/") || strings.Contains(name, "/node_modules/")
}
