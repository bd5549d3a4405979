package config

import (
	"fmt"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/storage/store"
)

// Quota is how much the sandboxes of one project may ask for together, running or not,
// besides those of atoll run; zero is no quota.
type Quota struct {
	Sandboxes int         `yaml:"sandboxes" doc:"how many there may be of each project; 0 for any number"`
	Memory    atoll.Bytes `yaml:"memory" doc:"their limits of memory together, like 16g; 0 for no quota"`
	CPUs      float64     `yaml:"cpus" doc:"their limits of CPUs together, like 8; 0 for no quota"`
	Processes int         `yaml:"processes" doc:"their limits of processes together; 0 for no quota"`
	Disk      atoll.Bytes `yaml:"disk" doc:"their limits of what is written outside of volumes together, like 40g; 0 for no quota"`
}

// quota is that of a project.
func (c *Config) quota(project string) store.Quota {
	q := c.Quota
	if own := c.Quotas[project]; own != nil {
		q = *own
	}
	return store.Quota(q)
}

// checkQuotas calls bad with the key of each value that makes no sense.
func (c *Config) checkQuotas(bad func(key string, err error)) {
	check := func(table string, q Quota) {
		for key, n := range map[string]float64{
			"sandboxes": float64(q.Sandboxes), "memory": float64(q.Memory), "cpus": q.CPUs, "processes": float64(q.Processes), "disk": float64(q.Disk),
		} {
			if n < 0 {
				bad(table+"."+key, fmt.Errorf("%v: must be positive, or 0 for no quota", n))
			}
		}
	}
	check("quota", c.Quota)
	for project, q := range c.Quotas {
		check("quotas."+project, *q)
	}
}
