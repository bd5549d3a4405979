package docker

import (
	"context"
	"encoding/json"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
)

// Usage implements atoll.Meter.
func (s *sandbox) Usage(ctx context.Context) (atoll.Usage, error) {
	r, err := s.p.findRecord(ctx, "usage", s.id)
	if err != nil {
		return atoll.Usage{}, err
	}
	if r.State != atoll.StatePaused {
		if err := requireRunning("usage", &r.Status); err != nil {
			return atoll.Usage{}, err
		}
	}
	if err := s.p.requireCgroups(ctx, "usage", s.id); err != nil {
		return atoll.Usage{}, err
	}
	stats, err := s.p.engine.ContainerStats(ctx, r.container, client.ContainerStatsOptions{})
	if err != nil {
		return atoll.Usage{}, s.p.wrapError(ctx, "usage", s.id, err)
	}
	defer stats.Body.Close()
	var now container.StatsResponse
	if err := json.NewDecoder(stats.Body).Decode(&now); err != nil {
		return atoll.Usage{}, s.p.wrapError(ctx, "usage", s.id, err)
	}
	return atoll.Usage{
		Memory:    atoll.Bytes(now.MemoryStats.Usage),
		CPU:       atoll.Duration(now.CPUStats.CPUUsage.TotalUsage),
		Processes: int(now.PidsStats.Current),
	}, nil
}

var _ atoll.Meter = (*sandbox)(nil)
