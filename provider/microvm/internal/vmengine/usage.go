package vmengine

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Usage implements supervisor.Engine: the CPU time is that of the machine's programs.
func (e *engine) Usage(ctx context.Context) (atoll.Usage, error) {
	n, err := e.Running(ctx)
	if err != nil {
		return atoll.Usage{}, err
	}
	cpu, err := childTime()
	return atoll.Usage{Memory: e.memory(), Processes: n, CPU: atoll.Duration(cpu)}, err
}
