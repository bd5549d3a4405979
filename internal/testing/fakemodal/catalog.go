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

// defaultEnvironment is the environment of calls that name none.
const defaultEnvironment = "main"

// pageSize is the largest number of objects on one page of a list.
const pageSize = 100

// An object is an app, a secret, a volume or a dict.
type object[T any] struct {
	id          string
	name        string // "" if it has none
	environment string
	created     time.Time
	value       T
}

// An objectName is the key of a name: names are unique in an environment.
type objectName struct{ environment, name string }

// A catalog holds all objects of one type.
type catalog[T any] struct {
	typeName string // such as "Volume"
	prefix   string // of ids, such as "vo-"
	byID     map[string]*object[T]
	names    map[objectName]*object[T]
}

func newCatalog[T any](sort, prefix string) catalog[T] {
	return catalog[T]{typeName: sort, prefix: prefix, byID: map[string]*object[T]{}, names: map[objectName]*object[T]{}}
}

// An objectRequest has the fields that all GetOrCreate requests share.
type objectRequest struct {
	name, environment string
	creation          pb.ObjectCreationType
}

var nameForm = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,64}$`)

// getOrCreate returns the object with the requested name, or creates it with the value of fill,
// depending on the creation type.
func (c *catalog[T]) getOrCreate(now time.Time, w objectRequest, fill func(id string) (T, error)) (*object[T], error) {
	switch w.creation {
	case pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL, pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP:
		w.name = ""
		return c.createObject(now, w, fill)
	}
	if !nameForm.MatchString(w.name) {
		return nil, status.Errorf(codes.InvalidArgument, "Invalid %s name: '%s'. Names may contain only alphanumeric characters, dashes, periods, and underscores, and must be 64 characters or less.", c.typeName, w.name)
	}
	o := c.names[objectName{cmp.Or(w.environment, defaultEnvironment), w.name}]
	switch {
	case o == nil && w.creation == pb.ObjectCreationType_OBJECT_CREATION_TYPE_UNSPECIFIED:
		return nil, status.Errorf(codes.NotFound, "%s '%s' not found in environment '%s'", c.typeName, w.name, cmp.Or(w.environment, defaultEnvironment))
	case o == nil:
		return c.createObject(now, w, fill)
	case w.creation == pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS:
		return nil, status.Errorf(codes.AlreadyExists, "%s '%s' already exists", c.typeName, w.name)
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

// getObject returns the object with an id.
func (c *catalog[T]) getObject(id string) (*object[T], error) {
	o := c.byID[id]
	if o == nil {
		return nil, status.Errorf(codes.NotFound, "%s '%s' not found", c.typeName, id)
	}
	return o, nil
}

// removeObject removes an object and its name.
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

// listPage returns the named objects of an environment, newest first.
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

// creationInfo returns the creation info of the object's metadata.
func (o *object[T]) creationInfo() *pb.CreationInfo {
	return pb.CreationInfo_builder{CreatedAt: unixSeconds(o.created), CreatedBy: "tests"}.Build()
}
