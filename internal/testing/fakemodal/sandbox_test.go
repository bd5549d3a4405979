package fakemodal

import (
	"fmt"
	"testing"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
)

// Lists come in pages, each of which starts after the last entry of the previous one.
func TestPages(t *testing.T) {
	const n = 2*sandboxPage + 7
	s := &Server{sandboxes: map[string]*sandbox{}}
	for i := range n {
		sb := &sandbox{id: fmt.Sprint(i), environment: defaultEnvironment, created: s.nextTime()}
		if i%2 == 0 {
			sb.result = successResult()
		}
		s.sandboxes[sb.id] = sb
	}
	pages := func(finished bool) (sizes []int) {
		before, next := float64(0), n
		for {
			resp, err := s.SandboxList(t.Context(), pb.SandboxListRequest_builder{IncludeFinished: finished, BeforeTimestamp: before}.Build())
			if err != nil {
				t.Fatal(err)
			}
			infos := resp.GetSandboxes()
			sizes = append(sizes, len(infos))
			if len(infos) == 0 {
				return sizes
			}
			for _, info := range infos {
				var i int
				if _, err := fmt.Sscan(info.GetId(), &i); err != nil || i >= next {
					t.Errorf("%s comes after %d, %v", info.GetId(), next, err)
				}
				next = i
			}
			before = infos[len(infos)-1].GetCreatedAt()
		}
	}
	if got, want := fmt.Sprint(pages(true), pages(false)), "[50 50 7 0] [50 3 0]"; got != want {
		t.Errorf("pages of %s, want %s", got, want)
	}
}
