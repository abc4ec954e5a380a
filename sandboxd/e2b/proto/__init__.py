"""Messages of the wire; the modules are generated from the `.proto` files beside them."""
