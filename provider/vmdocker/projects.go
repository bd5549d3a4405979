package vmdocker

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

// Projects implements atoll.ProjectLister. It lists the projects with a machine, a disk or a
// recorded state, and starts no machine.
func (p *Provider) Projects(ctx context.Context) ([]atoll.Project, error) {
	names, err := p.projectNames(ctx)
	if err != nil {
		return nil, atoll.E("projects", "", atoll.KindOf(err), err)
	}
	var list []atoll.Project
	for _, name := range names {
		one, err := p.describeProject(ctx, name)
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// projectNames returns the names of all projects, sorted.
func (p *Provider) projectNames(ctx context.Context) ([]string, error) {
	all, err := p.notes.listProjects()
	if err != nil {
		return nil, err
	}
	before, after, _ := strings.Cut(filepath.Base(p.opts.Config.DataDisk("*")), "*")
	disks, err := listNames(p.opts.Config.DataDir, after)
	if err != nil {
		return nil, err
	}
	for _, name := range disks {
		if project, ok := strings.CutPrefix(name, before); ok && atoll.ValidName(project) {
			all = append(all, project)
		}
	}
	machines, err := p.opts.Machines.List(ctx, atoll.Filter{Name: machineName})
	if err != nil {
		return nil, err
	}
	for _, st := range machines {
		all = append(all, st.Spec.Project)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// describeProject describes one project.
func (p *Provider) describeProject(ctx context.Context, name string) (atoll.Project, error) {
	one := atoll.Project{Name: name, Provider: Name}
	switch _, st, err := p.findMachine(ctx, name); {
	case err == nil:
		one.Machine = st.State
	case atoll.KindOf(err) != atoll.ErrNotFound:
		return one, err
	}
	sandboxes, err := p.listProject(ctx, name, nil)
	if err != nil {
		return one, err
	}
	one.Sandboxes = len(sandboxes)
	used, err := diskUsage(p.opts.Config.DataDisk(name))
	if err != nil {
		return one, atoll.E("projects", name, atoll.KindOf(err), err)
	}
	one.Disk = atoll.Bytes(used)
	return one, nil
}

// diskUsage returns the disk space that a machine's data at path uses. The path may be a file,
// a directory or missing.
func diskUsage(path string) (sum int64, err error) {
	err = filepath.WalkDir(path, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var n int64
			n, err = fsutil.Used(path)
			sum += n
		}
		if errors.Is(err, fs.ErrNotExist) { // deleted meanwhile
			return nil
		}
		return err
	})
	return sum, err
}

var _ atoll.ProjectLister = (*Provider)(nil)
