package document

import "go.mongodb.org/mongo-driver/v2/bson"

// parseExprQuery parses $expr.
func parseExprQuery(v bson.RawValue) (Node, error) {
	p := exprParser{timeless: true}
	x, err := p.parse(v)
	return Node{Op: Expr, Value: v, expr: x}, err
}
