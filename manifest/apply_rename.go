package manifest

import "slices"

// RenameCollection gives a collection another name. Change: the collection is there, and nothing has
// the name. Its id, its chunks and what is in them stay.
type RenameCollection struct {
	ID             CollectionID
	Database, Name string
}

func (x RenameCollection) apply(b *builder) error {
	const verb = "rename collection"
	c := b.s.Collection(x.ID)
	if c == nil {
		return conflict(verb, x.Database+"."+x.Name, "no collection has id %d", x.ID)
	}
	if there := b.s.CollectionByName(x.Database, x.Name); there != nil {
		return conflict(verb, c.Namespace(), "%s exists, with id %d", there.Namespace(), there.ID)
	}
	n := *c
	n.Database, n.Name = x.Database, x.Name
	list := slices.DeleteFunc(slices.Clone(b.s.collections), func(o *Collection) bool { return o.ID == x.ID })
	b.setCollections(list)
	i, _ := b.s.searchName(n.Database, n.Name)
	b.setCollections(inserted(b.s.collections, i, &n))
	b.log("renameCollection", n.Namespace(), detail().AppendString("from", c.Namespace()))
	return nil
}
