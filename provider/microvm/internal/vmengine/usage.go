package vmengine

import (
	"context"

	"github.com/seed46cd37a8/atoll"
)

// Usage implements supervisor.Engine. The CPU time is that of the hypervisor's processes.
func (e *engine) Usage(ctx context.Context) (atoll.Usage, error) {
	n, err := e.Running(ctx)
	if err != nil {
		return atoll.Usage{}, err
	}
	cpu, err := childTime()
	return atoll.Usage{Memory: e.memorySize(), Processes: n, CPU: atoll.Duration(cpu)}, err
}
