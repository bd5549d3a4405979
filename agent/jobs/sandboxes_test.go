package jobs_test

import (
	"context"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/agent/jobs"
	"github.com/seed46cd37a8/atoll/agent/jobs/jobstest"
	"github.com/seed46cd37a8/atoll/provider/local"
)

func TestSandboxes(t *testing.T) {
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	jobstest.Run(t, jobs.Sandboxes(p, nil), jobstest.Options{
		Open: true,
		Held: func(t *testing.T) (held []string) {
			all, err := p.List(context.Background(), atoll.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			for _, st := range all {
				held = append(held, st.ID)
			}
			return held
		},
	})
}
