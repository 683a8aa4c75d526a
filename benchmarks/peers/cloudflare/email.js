// The SDK imports Cloudflare's e-mail, which workerd has only beside a service for it. No job sends any.
export class EmailMessage {}
