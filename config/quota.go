package config

import (
	"fmt"

	"github.com/seed46cd37a8/atoll"
)

// Quota is the most that the sandboxes of one project may ask for together, running or not, without those of atoll
// run. A zero field is no quota.
type Quota struct {
	Sandboxes int         `yaml:"sandboxes" doc:"most sandboxes of a project; 0 for any number"`
	Memory    atoll.Bytes `yaml:"memory" doc:"total of their memory limits, like 16g; 0 for no quota"`
	CPUs      float64     `yaml:"cpus" doc:"total of their CPU limits, like 8; 0 for no quota"`
	Processes int         `yaml:"processes" doc:"total of their process limits; 0 for no quota"`
	Disk      atoll.Bytes `yaml:"disk" doc:"total of their limits of files written outside of volumes, like 40g; 0 for no quota"`
}

// checkQuotas calls bad with the key of each invalid value.
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
