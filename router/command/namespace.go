package command

import (
	"strings"

	"github.com/granarydb/granary/chunkstore/mongoerr"
	"github.com/granarydb/granary/router"
	"go.mongodb.org/mongo-driver/v2/bson"
)

const (
	maxNamespace = 255
	maxDatabase  = 63
)

func checkDatabase(db string) error {
	if db == "" || len(db) > maxDatabase || strings.ContainsAny(db, "/\\. \"$\x00") {
		return mongoerr.New(mongoerr.InvalidNamespace, "Invalid database name: '%s'", db)
	}
	return nil
}

// checkNamespace refuses names that no collection can have.
func checkNamespace(ns router.Namespace) error {
	if err := checkDatabase(ns.Database); err != nil {
		return err
	}
	name := ns.Collection
	if name == "" || name[0] == '.' || strings.ContainsAny(name, "$\x00") || len(ns.String()) > maxNamespace {
		return mongoerr.New(mongoerr.InvalidNamespace, "Invalid namespace specified '%s'", ns)
	}
	return nil
}

// namespace is the collection that the command names in its first field.
func (c *call) namespace() router.Namespace {
	v := c.fields[0].value
	name, ok := v.StringValueOK()
	if !ok {
		c.fail(mongoerr.New(mongoerr.InvalidNamespace, "collection name has invalid type %s", typeName(v.Type)))
		return router.Namespace{Database: c.DB}
	}
	ns := router.Namespace{Database: c.DB, Collection: name}
	if err := checkNamespace(ns); err != nil {
		c.fail(err)
	}
	return ns
}

// written is namespace for a command that changes the collection.
func (c *call) written() router.Namespace {
	ns := c.namespace()
	c.mayWrite(ns)
	return ns
}

func (c *call) mayWrite(ns router.Namespace) {
	switch ns.Database {
	case "config":
		c.fail(configRefusal(ns, c.cmd.Name))
	case "admin", "local":
		c.fail(mongoerr.New(mongoerr.IllegalOperation, "%s is not possible in the database %s, which shows the cluster itself", c.cmd.Name, ns.Database))
	}
	if strings.HasPrefix(ns.Collection, "system.") {
		c.fail(mongoerr.New(mongoerr.InvalidNamespace, "cannot write to '%s': names that begin with system. are reserved", ns))
	}
}

// qualified is a namespace given as one string "db.collection".
func (c *call) qualified(v bson.RawValue) router.Namespace {
	s, ok := v.StringValueOK()
	if !ok {
		c.fail(mongoerr.New(mongoerr.TypeMismatch, "%s: the namespace must be a string \"database.collection\"", c.cmd.Name))
		return router.Namespace{}
	}
	db, coll, _ := strings.Cut(s, ".")
	ns := router.Namespace{Database: db, Collection: coll}
	if err := checkNamespace(ns); err != nil {
		c.fail(err)
	}
	return ns
}
