package fakemodal

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	pb "github.com/modal-labs/libmodal/modal-go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// defaultEnvironment is the one of calls that name none.
const defaultEnvironment = "main"

// pageSize is how many objects a list has at most.
const pageSize = 100

// An object is an app, a secret, a volume or a dict.
type object[T any] struct {
	id          string
	name        string // "" for one that has none
	environment string
	created     time.Time
	value       T
}

// A place is where a name stands for an object.
type objectName struct{ environment, name string }

// A catalog has all objects of one sort.
type catalog[T any] struct {
	sort   string // "Volume"
	prefix string // "vo-"
	byID   map[string]*object[T]
	names  map[objectName]*object[T]
}

func newCatalog[T any](sort, prefix string) catalog[T] {
	return catalog[T]{sort: sort, prefix: prefix, byID: map[string]*object[T]{}, names: map[objectName]*object[T]{}}
}

// A wish is what a GetOrCreate asks for.
type objectRequest struct {
	name, environment string
	creation          pb.ObjectCreationType
}

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// getOrCreate finds the object, or makes it with the value of fill, as the wish says.
func (c *catalog[T]) getOrCreate(now time.Time, w objectRequest, fill func(id string) (T, error)) (*object[T], error) {
	switch w.creation {
	case pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL, pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP:
		w.name = ""
		return c.createObject(now, w, fill)
	}
	if !nameForm.MatchString(w.name) {
		return nil, status.Errorf(codes.InvalidArgument, "Invalid %s name: '%s'. Names may contain only alphanumeric characters, dashes, periods, and underscores, and must be 64 characters or less.", c.sort, w.name)
	}
	o := c.names[objectName{cmp.Or(w.environment, defaultEnvironment), w.name}]
	switch {
	case o == nil && w.creation == pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED:
		return nil, status.Errorf(codes.NotFound, "%s '%s' not found in environment '%s'", c.sort, w.name, cmp.Or(w.environment, defaultEnvironment))
	case o == nil:
		return c.createObject(now, w, fill)
	case w.creation == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
		return nil, status.Errorf(codes.AlreadyExists, "%s '%s' already exists", c.sort, w.name)
	case w.creation == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_OVERWRITE_IF_EXISTS:
		return c.createObject(now, w, fill)
	}
	return o, nil
}

func (c *catalog[T]) createObject(now time.Time, w objectRequest, fill func(id string) (T, error)) (*object[T], error) {
	o := &object[T]{id: newID(c.prefix), name: w.name, environment: cmp.Or(w.environment, defaultEnvironment), created: now}
	var err error
	if o.value, err = fill(o.id); err != nil {
		return nil, err
	}
	c.byID[o.id] = o
	if o.name != "" {
		c.names[objectName{o.environment, o.name}] = o
	}
	return o, nil
}

// getObject finds an object by its id.
func (c *catalog[T]) getObject(id string) (*object[T], error) {
	o := c.byID[id]
	if o == nil {
		return nil, status.Errorf(codes.NotFound, "%s '%s' not found", c.sort, id)
	}
	return o, nil
}

// removeObject forgets an object.
func (c *catalog[T]) removeObject(id string) (*object[T], error) {
	o, err := c.getObject(id)
	if err != nil {
		return nil, err
	}
	delete(c.byID, id)
	if at := (objectName{o.environment, o.name}); c.names[at] == o {
		delete(c.names, at)
	}
	return o, nil
}

// listPage is those that have a name in an environment, the newest first.
func (c *catalog[T]) listPage(environment string, p *pb.ListPagination) (page []*object[T]) {
	for at, o := range c.names {
		before := p.GetCreatedBefore()
		if at.environment == cmp.Or(environment, defaultEnvironment) && (before == 0 || unixSeconds(o.created) < before) {
			page = append(page, o)
		}
	}
	slices.SortFunc(page, func(a, b *object[T]) int { return b.created.Compare(a.created) })
	most := pageSize
	if n := int(p.GetMaxObjects()); n > 0 && n < most {
		most = n
	}
	return page[:min(most, len(page))]
}

// creationInfo is what the metadata of an object say.
func (o *object[T]) creationInfo() *pb.CreationInfo {
	return pb.CreationInfo_builder{CreatedAt: unixSeconds(o.created), CreatedBy: "tests"}.Build()
}
