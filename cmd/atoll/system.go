//go:build !client

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/fsutil"
)

func newSystem(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "system", Short: "Show the use of disks, and remove what is unused"}
	cmd.AddCommand(newSystemDf(a), newPrune(a))
	return cmd
}

// A diskUsage is the number and the size of the objects of one type.
type diskUsage struct {
	Type        string       `json:"type"`
	Total       int          `json:"total"`
	InUse       int          `json:"in_use"`
	Size        *atoll.Bytes `json:"size,omitempty"`        // nil if it is unknown
	Reclaimable *atoll.Bytes `json:"reclaimable,omitempty"` // the size of those that are not in use
}

func newSystemDf(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "df [flags]",
		Short: "Show the disk space of images, snapshots, volumes and sandboxes",
		Long: `Df shows how many sandboxes, images, snapshots and volumes there are, how many are in
use, and the disk space of those that have a known size. RECLAIMABLE is what
atoll image prune --all and atoll snapshot rm can free. If the sandboxes are on this
machine, the last line is the state directory: its files include everything but what
Docker, Kubernetes or Modal store.`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withConnection(cmd, func(ctx context.Context, c *connection) error {
				all, err := a.measureDisks(ctx, c)
				switch {
				case err != nil:
					return err
				case asJSON:
					return a.printJSON(all)
				}
				rows := [][]string{{"TYPE", "TOTAL", "IN USE", "SIZE", "RECLAIMABLE"}}
				for _, u := range all {
					total, inUse := fmt.Sprint(u.Total), fmt.Sprint(u.InUse)
					if u.Type == stateFiles {
						total, inUse = "-", "-"
					}
					rows = append(rows, []string{u.Type, total, inUse, formatSize(u.Size), formatSize(u.Reclaimable)})
				}
				return a.printTable(rows)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// stateFiles is the type of the line of the state directory.
const stateFiles = "state directory"

// measureDisks returns the usage of each type of objects. Types that no provider has are left out.
func (a *app) measureDisks(ctx context.Context, c *connection) ([]diskUsage, error) {
	sandboxes, err := c.List(ctx, atoll.Filter{})
	if err != nil {
		return nil, err
	}
	all := []diskUsage{{Type: "sandboxes", Total: len(sandboxes)}}
	for _, st := range sandboxes {
		if st.State == atoll.StateRunning || st.State == atoll.StatePaused {
			all[0].InUse++
		}
	}
	images, err := atoll.Images(ctx, c.Provider)
	if err == nil {
		all = append(all, countSizes("images", images, func(i atoll.Image) (bool, atoll.Bytes) { return i.InUse, i.Size }))
	} else if atoll.KindOf(err) != atoll.ErrUnsupported {
		return nil, err
	}
	snapshots, err := atoll.Snapshots(ctx, c.Provider)
	if err == nil {
		all = append(all, countSizes("snapshots", snapshots, func(s atoll.Snapshot) (bool, atoll.Bytes) { return false, s.Size }))
	} else if atoll.KindOf(err) != atoll.ErrUnsupported {
		return nil, err
	}
	volumes, err := atoll.Volumes(ctx, c.Provider, "")
	if err == nil {
		u := diskUsage{Type: "volumes", Total: len(volumes)}
		for _, v := range volumes {
			if v.InUse {
				u.InUse++
			}
		}
		all = append(all, u)
	} else if atoll.KindOf(err) != atoll.ErrUnsupported {
		return nil, err
	}
	cfg, err := a.loadConfig()
	if err != nil || cfg.URL != "" {
		return all, err
	}
	size, err := treeSize(ctx, cfg.StateDir)
	if err != nil {
		return nil, err
	}
	return append(all, diskUsage{Type: stateFiles, Size: &size}), nil
}

// countSizes returns the usage of objects whose use and size are known.
func countSizes[T any](kind string, objects []T, describe func(T) (inUse bool, size atoll.Bytes)) diskUsage {
	var size, reclaimable atoll.Bytes
	u := diskUsage{Type: kind, Total: len(objects), Size: &size, Reclaimable: &reclaimable}
	for _, o := range objects {
		inUse, n := describe(o)
		size += n
		if inUse {
			u.InUse++
		} else {
			reclaimable += n
		}
	}
	return u
}

// treeSize returns the number of bytes that the files below dir take up on disk. It leaves out files that disappear
// meanwhile, and those that the user may not see.
func treeSize(ctx context.Context, dir string) (total atoll.Bytes, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		n, err := fsutil.Used(path)
		total += atoll.Bytes(n)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		return err
	})
	return total, err
}

// formatSize returns a size for people, or a dash if it is unknown.
func formatSize(size *atoll.Bytes) string {
	if size == nil {
		return "-"
	}
	return byteCount(int64(*size))
}
